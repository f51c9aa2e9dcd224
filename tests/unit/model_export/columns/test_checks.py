"""Checks the arguments that columns refuse, with TensorFlow's own error if it has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tf

PADDED = {"embedding_lookup_device": "tpu_tensor_core"}


def column(name: str) -> Any:
    """Returns the categorical column that the tests of this file call by this short name."""
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    i, j = fc.categorical_column_with_identity("i", 4), fc.categorical_column_with_identity("j", 5)
    made = {
        "i": i,
        "j": j,
        "sequence": fc.sequence_categorical_column_with_identity("s", 4),
        "hashed": fc.categorical_column_with_hash_bucket("h", 4),
        "bucketized": fc.bucketized_column(fc.numeric_column("x"), [0.0, 1.0]),
        "crossed": fc.crossed_column(["a", "b"], 4),
        "numeric": fc.numeric_column("x"),
        "word": "i",
    }
    made["weighted hashed"] = fc.weighted_categorical_column(made["hashed"], "w")
    made["sequence hashed"] = fc.sequence_categorical_column_with_hash_bucket("h", 4)
    return made[name]


SAME_AS_TENSORFLOW: list[tuple[str, dict[str, Any]]] = [
    ("i", {"dimension": 0}),
    ("i", {"dimension": -1}),
    ("i", {"dimension": None}),
    ("i", {"dimension": 2, "initializer": 0.5}),
    ("i", {"dimension": 2, "tensor_core_shape": [1, 2, 3]}),
    ("i", {"dimension": 2, "tensor_core_shape": [2]}),
    ("i", {"dimension": 2, "embedding_lookup_device": "gpu"}),
    ("i", {"dimension": 2, **PADDED}),
    ("sequence", {"dimension": 2, **PADDED, "tensor_core_shape": [None, 2], "max_sequence_length": 2}),
    ("i", {"dimension": 2, "max_sequence_length": 2}),
    ("i", {"dimension": 2, "max_sequence_length": -1}),
    ("sequence", {"dimension": 2}),
    ("sequence", {"dimension": 2, "max_sequence_length": -3}),
    ("numeric", {"dimension": 2}),
    ("word", {"dimension": 2}),
    # If the arguments have two faults, both programs report the same one of them.
    ("i", {"dimension": 0, "initializer": 1, "embedding_lookup_device": "gpu"}),
    ("i", {"dimension": 2, "initializer": 1, "embedding_lookup_device": "gpu"}),
]


def error_of(make: Any, *args: Any, **kwargs: Any) -> Exception:
    """Returns the TypeError or ValueError that a call raises."""
    with pytest.raises((TypeError, ValueError)) as caught:
        make(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(("name", "arguments"), SAME_AS_TENSORFLOW, ids=str)
@pytest.mark.parametrize("is_shared", [False, True])
def test_errors_are_tensorflows_own(name: str, arguments: dict[str, Any], is_shared: bool) -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    theirs, given = tf.compat.v1.tpu.experimental, dict(arguments)
    if is_shared:
        length = given.pop("max_sequence_length", None)
        given["max_sequence_lengths"] = None if length is None else [length]
        pair = (theirs.shared_embedding_columns, shared_embedding_columns)
        wanted, got = (error_of(make, [column(name)], **given) for make in pair)
    else:
        wanted, got = (error_of(make, column(name), **given) for make in (theirs.embedding_column, embedding_column))
    assert (type(got), str(got)) == (type(wanted), str(wanted))


@pytest.mark.parametrize(
    ("names", "arguments"), [(["i", "i"], {"max_sequence_lengths": [0]}), (["i", "j"], {}), (["j", "i"], {})], ids=str
)
def test_errors_of_several_columns_are_tensorflows_own(names: list[str], arguments: dict[str, Any]) -> None:
    from model_export.columns.embedding_column import shared_embedding_columns
    from model_export.tensorflow_setup import tf

    columns = [column(name) for name in names]
    theirs = tf.compat.v1.tpu.experimental.shared_embedding_columns
    wanted, got = (error_of(make, columns, 2, **arguments) for make in (theirs, shared_embedding_columns))
    assert (type(got), str(got)) == (type(wanted), str(wanted))


FORGOTTEN: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("i", {"dimension": 2.5}, ValueError, "Invalid dimension 2.5."),
    ("i", {"dimension": True}, ValueError, "Invalid dimension True."),
    ("i", {"dimension": "8"}, ValueError, "Invalid dimension 8."),
    ("i", {"learning_rate_fn": 0.1}, ValueError, "learning_rate_fn must be callable if specified."),
    ("i", {"combiner": "max"}, ValueError, "combiner must be one of 'mean', 'sqrtn' or 'sum', got max"),
    (
        "i",
        {"combiner": "sqrtn", **PADDED, "tensor_core_shape": [None, 2]},
        ValueError,
        "Dense TPU Embedding does not support combiner other than sum and mean.",
    ),
    ("i", {"tensor_core_shape": [None, None]}, ValueError, "tensor_core_shape must be [rows or None, ids per row]."),
    ("i", {"tensor_core_shape": [None, 0]}, ValueError, "tensor_core_shape must be [rows or None, ids per row]."),
    ("i", {"tensor_core_shape": [0, 2]}, ValueError, "tensor_core_shape must be [rows or None, ids per row]."),
    ("i", {"tensor_core_shape": [None, 2.5]}, ValueError, "tensor_core_shape must be [rows or None, ids per row]."),
    ("sequence", {"max_sequence_length": 2.5}, ValueError, "max_sequence_length must be an integer."),
    ("hashed", {}, TypeError, "denylisted type"),
    ("bucketized", {}, TypeError, "denylisted type"),
    ("crossed", {}, TypeError, "denylisted type"),
    ("weighted hashed", {}, TypeError, "denylisted type"),
    ("sequence hashed", {"max_sequence_length": 2}, TypeError, "denylisted type"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "text"), FORGOTTEN, ids=str)
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_tensorflow_forgets_is_refused(
    name: str, arguments: dict[str, Any], error: type[Exception], text: str, is_shared: bool
) -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    given = {"dimension": 2, **arguments}
    single = dict(given)
    if is_shared:
        length = given.pop("max_sequence_length", None)
        given["max_sequence_lengths"] = None if length is None else [length]
        got = error_of(shared_embedding_columns, [column(name)], **given)
    else:
        got = error_of(embedding_column, column(name), **given)
    assert type(got) is error and text in str(got)
    if arguments.get("dimension") != "8":  # TensorFlow raises another error for "8", which it can not compare with 1
        tf.compat.v1.tpu.experimental.embedding_column(column(name), **single)


def test_the_texts_of_a_combiner_are_those_of_tensorflows_lookups() -> None:
    from tensorflow.python.tpu import feature_column_v2

    from model_export.columns.checks import checked_combiner
    from model_export.tensorflow_setup import tf

    table, ids = tf.zeros([4, 2]), tf.sparse.from_dense([[1]])
    sparse = error_of(tf.nn.embedding_lookup_sparse, table, ids, None, combiner="max")
    assert str(error_of(checked_combiner, "max", None)) == str(sparse)
    padded = error_of(
        feature_column_v2.sparse_embedding_aggregate_slice, table, (tf.constant([[1]]), tf.ones([1, 1])), "sqrtn"
    )
    assert str(error_of(checked_combiner, "sqrtn", "tpu_tensor_core")) == str(padded)


def test_no_shared_column_at_all_is_refused_by_name() -> None:
    from model_export.columns.embedding_column import shared_embedding_columns

    with pytest.raises(ValueError, match="categorical_columns must hold at least one"):
        shared_embedding_columns([], 2)


def test_what_is_as_good_as_an_int_or_a_list_is_taken() -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns

    made = embedding_column(column("i"), np.int32(2), None, tensor_core_shape=(-1, np.int64(3)))  # type: ignore[arg-type]
    assert (made.dimension, made.combiner, made.tensor_core_shape) == (2, "mean", (None, 3))
    generated = shared_embedding_columns((column(name) for name in ("i", "i")), 2)
    assert [type(made).__name__ for made in generated] == ["TPUSharedEmbeddingColumn"] * 2
