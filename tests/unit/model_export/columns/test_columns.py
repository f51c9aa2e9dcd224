"""Columns: refused arguments, names, and what copies and configurations keep; shared columns have one table."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.features import FeatureSpec
from tests.unit.model_export.columns.column_cases import TABLE, sparse, table_initializer
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

embedding_column = Late("model_export.columns.embedding_column", "embedding_column")
shared_embedding_columns = Late("model_export.columns.embedding_column", "shared_embedding_columns")
feature_names = Late("model_export.columns.to_spec", "feature_names")
table_names = Late("model_export.columns.to_spec", "table_names")

PADDED = {"embedding_lookup_device": "tpu_tensor_core"}


def column(name: str) -> Any:
    """Returns the categorical column that the tests of this file call by this short name."""
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

    table, ids = tf.zeros([4, 2]), tf.sparse.from_dense([[1]])
    sparse = error_of(tf.nn.embedding_lookup_sparse, table, ids, None, combiner="max")
    assert str(error_of(checked_combiner, "max", None)) == str(sparse)
    padded = error_of(
        feature_column_v2.sparse_embedding_aggregate_slice, table, (tf.constant([[1]]), tf.ones([1, 1])), "sqrtn"
    )
    assert str(error_of(checked_combiner, "sqrtn", "tpu_tensor_core")) == str(padded)


def test_no_shared_column_at_all_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="categorical_columns must hold at least one"):
        shared_embedding_columns([], 2)


def test_what_is_as_good_as_an_int_or_a_list_is_taken() -> None:
    made = embedding_column(column("i"), np.int32(2), None, tensor_core_shape=(-1, np.int64(3)))  # type: ignore[arg-type]
    assert (made.dimension, made.combiner, made.tensor_core_shape) == (2, "mean", (None, 3))
    generated = shared_embedding_columns((column(name) for name in ("i", "i")), 2)
    assert [type(made).__name__ for made in generated] == ["TPUSharedEmbeddingColumn"] * 2


def identity(key: str, rows: int = 4) -> Any:
    """A categorical column."""
    return tf.feature_column.categorical_column_with_identity(key, rows)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("user_id", "user_id"),
        ("user/id", "user_id"),
        ("user.id", "user_id"),
        ("a__b", "a_b"),
        ("_a_", "a"),
        ("2nd", "feature_2nd"),
        ("été", "t"),
        ("/", "feature"),
        ("Größe 1", "Gr_e_1"),
    ],
)
def test_a_key_becomes_a_name_that_a_feature_may_have(key: str, name: str) -> None:
    from model_export.columns.to_spec import safe_name

    assert safe_name(key, "feature") == name
    FeatureSpec(name, "table")


def test_names_follow_the_columns_in_order() -> None:
    weighted = tf.feature_column.weighted_categorical_column(identity("user/id"), "w")
    columns = [*shared_embedding_columns([identity("b"), identity("a")], 2), embedding_column(weighted, 2)]
    assert dict(feature_names(columns)) == dict(zip(["b", "a", "user_id"], columns, strict=True))
    assert dict(table_names(columns)) == {
        "a_b_shared_embedding": columns[:2],
        "user_id_weighted_by_w": columns[2:],
    }
    assert list(feature_names(columns[2])) == ["user_id"], "one column alone will do"


def test_tensorflows_own_columns_have_names_too() -> None:
    assert list(feature_names([tf.compat.v1.tpu.experimental.embedding_column(identity("a"), 2)])) == ["a"]


def test_what_would_be_one_name_is_refused() -> None:
    twice = [embedding_column(identity("a"), 2), *shared_embedding_columns([identity("a")], 2)]
    with pytest.raises(ValueError, match="Feature column a is used with multiple embeddings"):
        feature_names(twice)
    alike = [embedding_column(identity("a/b"), 2), embedding_column(identity("a.b"), 2)]
    with pytest.raises(ValueError, match="features 'a/b' and 'a.b' would both be named 'a_b'"):
        feature_names(alike)
    with pytest.raises(ValueError, match="tables of columns 'a/b_embedding' and 'a.b_embedding' would both be named"):
        table_names(alike)
    collections = [
        shared_embedding_columns([identity(key)], 2, shared_embedding_collection_name="t")[0] for key in ("a", "b")
    ]
    with pytest.raises(ValueError, match="would both be named 't'"):
        table_names(collections)


@pytest.mark.parametrize("wrong", ["numeric", "embedding"])
def test_other_columns_are_refused(wrong: str) -> None:
    from model_export.columns.to_spec import checked_columns

    fc = tf.feature_column
    column = fc.numeric_column("x") if wrong == "numeric" else fc.embedding_column(identity("a"), 2)
    with pytest.raises(TypeError, match="must be made by embedding_column or shared_embedding_columns, got"):
        checked_columns([column])


def rate(step: int) -> float:
    """A learning rate."""
    return 1 / step


def every_field(column: Any) -> dict[str, Any]:
    """Returns the fields that hold the arguments of embedding_column; get_config has not all of them."""
    return {
        "categorical_column": column.categorical_column,
        "dimension": column.dimension,
        "combiner": column.get_combiner(),
        "max_sequence_length": column.get_max_sequence_length(),
        "learning_rate_fn": column.get_learning_rate_fn(),
        "device": column.embedding_lookup_device,
        "shape": column.tensor_core_shape,
        "safe": column.use_safe_embedding_lookup,
        "name": column.name,
        "variable": column.get_embedding_var_name(),
    }


def examples() -> list[Any]:
    """Returns columns, none of whose fields have default values, as far as one column can have that."""
    fc = tf.feature_column
    initializer = tf.compat.v1.random_uniform_initializer(-1, 1, seed=3)
    padded: dict[str, Any] = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [8, 5]}
    return [
        embedding_column(
            fc.weighted_categorical_column(fc.categorical_column_with_vocabulary_list("w", list("abc")), "f"),
            2,
            "sum",
            initializer,
            learning_rate_fn=rate,
            use_safe_embedding_lookup=False,
            **padded,
        ),
        embedding_column(
            fc.sequence_categorical_column_with_identity("s", 9, default_value=2),
            4,
            "sqrtn",
            initializer,
            max_sequence_length=7,
            learning_rate_fn=rate,
            embedding_lookup_device="cpu",
        ),
    ]


def test_a_configuration_keeps_every_argument() -> None:
    for column in examples():
        restored = type(column).from_config(column.get_config())
        assert every_field(restored) == every_field(column)
        assert restored.get_initializer().get_config() == column.get_initializer().get_config()


def test_a_layers_configuration_goes_through_json() -> None:
    from tf_keras.src.saving.legacy.saved_model import json_utils

    dense, sequence = examples()
    layers = {tf.keras.layers.DenseFeatures: dense, tf.keras.experimental.SequenceFeatures: sequence}
    for layer, column in layers.items():
        config = json.loads(json.dumps(layer([column]).get_config(), default=json_utils.get_json_type))
        with pytest.raises(ValueError, match="learning_rate_fn 'rate' is not among custom_objects"):
            layer.from_config(config)
        restored = layer.from_config(config, custom_objects={"rate": rate})._feature_columns[0]
        assert every_field(restored) == every_field(column)


def test_an_initializer_that_is_a_function_stays_that_function() -> None:
    column = embedding_column(
        tf.feature_column.categorical_column_with_identity("i", 6), 3, initializer=table_initializer
    )
    assert type(column).from_config(column.get_config()).get_initializer() is table_initializer
    named = {**column.get_config(), "initializer": "table_initializer"}
    restored = type(column).from_config(named, custom_objects={"table_initializer": table_initializer})
    assert restored.get_initializer() is table_initializer
    layer = tf.keras.layers.DenseFeatures([restored])
    np.testing.assert_array_equal(layer({"i": sparse([[4]], tf.int64)}), TABLE[[4]])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda column: pickle.loads(pickle.dumps(column))])
def test_a_copy_keeps_every_argument(copied: Any) -> None:
    for column in examples():
        twin = copied(column)
        assert type(twin) is type(column) and twin is not column
        assert every_field(twin) == every_field(column)
        assert twin.get_initializer().get_config() == column.get_initializer().get_config()


def test_one_columns_shape_is_not_anothers() -> None:
    from model_export.columns.embedding_column import TPUEmbeddingColumn, embedding_column

    fc = tf.feature_column
    before = getattr(TPUEmbeddingColumn, "_tensor_core_shape", None)
    made = [
        embedding_column(
            fc.categorical_column_with_identity(key, 6),
            3,
            embedding_lookup_device="tpu_tensor_core",
            tensor_core_shape=[None, width],
        )
        for key, width in (("i", 2), ("j", 7))
    ]
    assert [column.tensor_core_shape for column in made] == [(None, 2), (None, 7)]
    # TensorFlow keeps the last tensor_core_shape in its own class; the columns of this project must not set it there.
    assert getattr(TPUEmbeddingColumn, "_tensor_core_shape", None) is before


def columns() -> list[Any]:
    """Returns two shared columns with none of their fields at its default."""
    fc = tf.feature_column
    weighted = fc.weighted_categorical_column(fc.categorical_column_with_identity("b", 6), "w")
    return shared_embedding_columns(
        [weighted, fc.categorical_column_with_identity("a", 6)],
        3,
        "sum",
        table_initializer,
        "words",
        learning_rate_fn=rate,
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 4],
        use_safe_embedding_lookup=False,
    )


def every_shared_field(column: Any) -> tuple[Any, ...]:
    """Returns the fields that hold the arguments of shared_embedding_columns."""
    return (
        column.categorical_column,
        column.get_embedding_table_size(),
        column.get_combiner(),
        column.get_initializer(),
        column.shared_embedding_collection_name,
        column.max_sequence_length,
        column.learning_rate_fn,
        column.embedding_lookup_device,
        column.tensor_core_shape,
        column.use_safe_embedding_lookup,
        column.name,
    )


def table_of(column: Any) -> Any:
    """Returns the object that makes the variable of a column's table."""
    return column.shared_embedding_column_creator


def test_copies_keep_every_argument_and_share_among_themselves() -> None:
    made = columns()
    features = {key: sparse([[1]], tf.int64) for key in "ab"} | {"w": sparse([[1.0]], tf.float32)}
    # the layer creates the table, and a deep copy of a column works all the same but does not copy the table
    tf.keras.layers.DenseFeatures(made)(features)
    twins = copy.deepcopy(made)
    assert [every_shared_field(twin) for twin in twins] == [every_shared_field(column) for column in made]
    assert table_of(twins[0]) is table_of(twins[1]) is not table_of(made[0])
    np.testing.assert_array_equal(tf.keras.layers.DenseFeatures(twins)(features), np.hstack([TABLE[[1]], TABLE[[1]]]))


def test_a_layers_configuration_keeps_every_argument_and_the_sharing() -> None:
    made = sorted(columns(), key=lambda column: str(column.name))
    layer = tf.keras.layers.DenseFeatures(made)
    restored = tf.keras.layers.DenseFeatures.from_config(layer.get_config())._feature_columns
    assert [every_shared_field(column) for column in restored] == [every_shared_field(column) for column in made]
    assert table_of(restored[0]) is table_of(restored[1]) is not table_of(made[0])
    alone = type(made[0]).from_config(made[0].get_config())
    assert every_shared_field(alone) == every_shared_field(made[0]) and table_of(alone) is not table_of(made[0])


@pytest.mark.parametrize("name", [None, "words"])
def test_the_variable_is_named_as_tensorflows(name: str | None) -> None:
    v1 = tf.compat.v1
    names = []
    for make in (shared_embedding_columns, v1.tpu.experimental.shared_embedding_columns):
        with tf.Graph().as_default():
            fc = tf.feature_column
            categorical = [fc.categorical_column_with_identity(key, 6) for key in ("b", "a")]
            made = make(categorical, 3, shared_embedding_collection_name=name)
            assert [column.name for column in made] == ["b_shared_embedding", "a_shared_embedding"], "as given"
            v1.keras.layers.DenseFeatures(made)({key: sparse([[1]], tf.int64) for key in "ab"})
            names.append([variable.name for variable in v1.global_variables()])
    assert names[0] == names[1] == [f"{name or 'a_b_shared_embedding'}:0"]


def test_both_columns_train_the_one_table() -> None:
    fc = tf.feature_column
    made = shared_embedding_columns(
        [fc.categorical_column_with_identity(key, 6) for key in ("a", "b")], 3, "sum", table_initializer
    )
    with tf.GradientTape() as tape:
        vectors = tf.keras.layers.DenseFeatures(made)({"a": sparse([[1, 2]], tf.int64), "b": sparse([[2]], tf.int64)})
        total = tf.reduce_sum(vectors)
    (table,) = tape.watched_variables()
    gradient = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
    assert gradient[:, 0].tolist() == [0, 1, 2, 0, 0, 0]


def test_a_function_leaves_no_name_behind_and_keras_trains_the_table(tmp_path: Path) -> None:
    fc = tf.feature_column
    features = {key: sparse([[1, 2]], tf.int64) for key in "ab"}
    for _ in range(2):  # a second model in the same process uses the same names of columns and tables
        made = shared_embedding_columns(
            [fc.categorical_column_with_identity(key, 6) for key in "ab"], 3, "sum", table_initializer, "films/all"
        )
        layer = tf.keras.layers.DenseFeatures(made)
        vectors = tf.function(lambda ids, layer=layer: layer(ids))(features)
        np.testing.assert_allclose(vectors, np.hstack([TABLE[[1]] + TABLE[[2]]] * 2), rtol=1e-6)
        (table,) = layer.trainable_variables
        assert table is table_of(made[0]).embedding_weights and table.name == "films/all:0"
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(features)))
        tf.keras.optimizers.SGD(0.1).minimize(loss, layer.trainable_variables, tape=tape)
        assert np.flatnonzero((table.numpy() != TABLE).any(axis=1)).tolist() == [1, 2]
        trained = table.numpy()
        saved = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
        table.assign_add(tf.ones_like(table))
        tf.train.Checkpoint(layer=layer).restore(saved).assert_existing_objects_matched()
        np.testing.assert_array_equal(table, trained)
    theirs = tf.compat.v1.tpu.experimental.shared_embedding_columns(
        [fc.categorical_column_with_identity(key, 6) for key in "ab"], 3, shared_embedding_collection_name="others"
    )
    layer = tf.keras.layers.DenseFeatures(theirs)
    layer(features)
    assert layer.trainable_variables == [], "what ours is there for"
    with pytest.raises(ValueError, match="Unable to save"):
        tf.train.Checkpoint(layer=layer).save(str(tmp_path / "theirs"))
