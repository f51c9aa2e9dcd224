"""Columns become a ModelSpec whose policies and vocabularies give the rows that TensorFlow's own columns give."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from tests.unit.model_export.columns.column_cases import (
    SAFE_ROWS,
    TABLE,
    UNSAFE_ROWS,
    V,
    kinds,
    sparse,
    table_initializer,
    weights_of,
)
from tests.unit.model_export.columns.test_columns import rate
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

ours = Late("model_export.columns.embedding_column")
embedding_column = Late("model_export.columns.embedding_column", "embedding_column")
model_spec = Late("model_export.columns.to_spec", "model_spec")
vocabulary_of = Late("model_export.columns.to_spec", "vocabulary_of")


def by_policy(
    spec: ModelSpec, feature: FeatureSpec, rows: list[list[int]], weights: list[list[float]] | None
) -> np.ndarray[Any, Any]:
    """Computes a CPU lookup from the fields of a feature's spec; an id below 0 is a key that was dropped."""
    out = np.zeros((len(rows), TABLE.shape[1]))
    for r, row in enumerate(rows):
        pairs = []
        for i, w in zip(row, weights[r] if weights else [1.0] * len(row), strict=True):
            bad = not 0 <= i < V
            if feature.on_nonpositive_weight == "drop" and w <= 0:
                continue
            if bad and (feature.on_bad_id == "drop" or (feature.on_bad_id == "drop_negative" and i < 0)):
                continue
            assert not bad or feature.on_bad_id == "default_row", "an error"
            pairs.append((feature.default_id if bad else i, w))
        w = np.array([factor for _, factor in pairs])
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[spec.combiner_of(feature) or ""]
        total = sum((factor * TABLE[i].astype(np.float64) for i, factor in pairs), np.zeros(TABLE.shape[1]))
        out[r] = total / divisor if divisor else 0
    return out


@pytest.mark.parametrize(("combiner", "safe"), list(itertools.product(["sum", "mean", "sqrtn"], [True, False])))
def test_the_policies_are_those_of_tensorflows_column(combiner: str, safe: bool, tmp_path: Path) -> None:
    rows = SAFE_ROWS if safe else UNSAFE_ROWS
    by_kind = kinds(tmp_path)
    features = {key: value for kind in by_kind.values() for key, value in kind.features(rows).items()}
    fallback = tf.feature_column.categorical_column_with_identity("fallback", V, default_value=3)
    categorical = [kind.column for kind in by_kind.values()] + [fallback]
    beyond = [[*row, -7, V, V + 9] if row else row for row in rows]
    features["fallback"] = sparse(beyond, tf.int64)
    arguments: dict[str, Any] = {"combiner": combiner, "initializer": table_initializer}
    arguments["use_safe_embedding_lookup"] = safe
    theirs = [tf.compat.v1.tpu.experimental.embedding_column(column, 3, **arguments) for column in categorical]
    looked_up: dict[Any, Any] = {}
    tf.keras.layers.DenseFeatures(theirs)(features, cols_to_output_tensors=looked_up)
    spec = model_spec([ours.embedding_column(column, 3, **arguments) for column in categorical])
    for feature, column in zip(spec.features, theirs, strict=True):
        weights = weights_of(rows) if feature.name == "weighted" else None
        ids = beyond if feature.name == "fallback" else rows
        np.testing.assert_allclose(
            by_policy(spec, feature, ids, weights), looked_up[column], rtol=1e-5, atol=1e-6, err_msg=feature.name
        )
    assert model_spec(theirs) == spec, "TensorFlow's own columns mean the same"


def test_every_field_of_a_model(tmp_path: Path) -> None:
    from model_export.columns.embedding_column import shared_embedding_columns

    fc = tf.feature_column
    a, b = (fc.categorical_column_with_identity(key, 10) for key in "ab")
    weighted = fc.weighted_categorical_column(fc.categorical_column_with_identity("user/id", 7, default_value=4), "w")
    steps = fc.sequence_categorical_column_with_vocabulary_list("steps", [5, 6], num_oov_buckets=2)
    padded: dict[str, Any] = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, 4]}
    columns = [
        *shared_embedding_columns([b, a], 4, "sum", learning_rate_fn=rate, **padded),
        embedding_column(weighted, 16, **padded),
        embedding_column(steps, 2, max_sequence_length=3, use_safe_embedding_lookup=False),
        embedding_column(
            fc.categorical_column_with_identity("plain", 3),
            2,
            "sqrtn",
            tf.compat.v1.truncated_normal_initializer(stddev=0.5),
            use_safe_embedding_lookup=False,
        ),
    ]
    spec = model_spec(columns, max_ids_per_row=9)
    assert spec.tables == (
        TableSpec("a_b_shared_embedding", 10, 4, "sum", 0.5),
        TableSpec("user_id_weighted_by_w", 7, 16, "mean", 0.25),
        TableSpec("steps", 4, 2, "mean", 1 / 2**0.5),
        TableSpec("plain", 3, 2, "sqrtn", 0.5),
    )
    assert spec.features[1] == FeatureSpec(
        "a",
        "a_b_shared_embedding",
        is_ragged=True,
        max_ids_per_row=4,
        combiner="sum",
        on_bad_id="drop_negative",
        on_too_many_ids="truncate",
    )
    assert spec.feature("user_id") == FeatureSpec(
        "user_id",
        "user_id_weighted_by_w",
        is_ragged=True,
        max_ids_per_row=4,
        combiner="mean",
        on_bad_id="default_row",
        default_id=4,
        on_nonpositive_weight="keep",  # the padded lookup keeps ids whose weight is not positive
        on_too_many_ids="truncate",
    )
    sequence = spec.feature("steps")
    assert (sequence.max_sequence_length, sequence.combiner, sequence.on_bad_id) == (3, None, "drop_negative")
    assert sequence.vocabulary is not None
    assert (sequence.vocabulary.keys, sequence.vocabulary.num_oov_buckets) == ((5, 6), 2)
    plain = spec.feature("plain")
    assert (plain.max_ids_per_row, plain.on_too_many_ids, plain.on_bad_id) == (9, "error", "error")
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert [column.learning_rate_fn for column in columns].count(rate) == 2, "kept by both columns of the table"


@pytest.mark.parametrize("device", [None, "cpu", "tpu_tensor_core", "tpu_embedding_core"])
def test_the_device_of_a_column_of_either_library(device: str | None) -> None:
    from model_export.columns.to_spec import device_of

    categorical = tf.feature_column.categorical_column_with_identity("i", 4)
    shape = {"tensor_core_shape": [None, 2]} if device == "tpu_tensor_core" else {}
    for api in (ours, tf.compat.v1.tpu.experimental):
        assert device_of(api.embedding_column(categorical, 2, embedding_lookup_device=device, **shape)) == device
        shared = api.shared_embedding_columns([categorical], 2, embedding_lookup_device=device, **shape)
        assert device_of(shared[0]) == device


def test_a_categorical_column_of_ones_own_has_no_known_policy() -> None:
    from model_export.columns.tensorflow_columns import CategoricalColumn

    class Own(CategoricalColumn):  # type: ignore[misc]
        name = "own"
        num_buckets = _num_buckets = 4
        parents: list[Any] = []
        parse_example_spec: dict[str, Any] = {}
        _is_v2_column = True

        def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
            raise NotImplementedError

        def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
            raise NotImplementedError

        def get_config(self) -> Any:
            raise NotImplementedError

        @classmethod
        def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
            raise NotImplementedError

    with pytest.raises(TypeError, match="has no known mapping to rows"):
        model_spec([embedding_column(Own(), 2)])


def rows_in_tensorflow(column: Any, keys: list[Any], dtype: Any) -> list[int]:
    """Returns the rows to which a column's own vocabulary maps keys."""
    from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

    cache = FeatureTransformationCache({column.key: sparse([keys], dtype)})
    rows: list[int] = column.get_sparse_tensors(cache, None).id_tensor.values.numpy().tolist()
    return rows


def rows_by_spec(vocabulary: VocabularySpec, keys: list[Any]) -> list[int]:
    """Returns the rows that a VocabularySpec gives for keys; -1 for a key that is dropped or refused."""

    def row(key: Any) -> int:
        if key in vocabulary.keys:
            return vocabulary.first_id + vocabulary.keys.index(key)
        if vocabulary.num_oov_buckets:
            bucket = int(tf.strings.to_hash_bucket_fast(str(key), vocabulary.num_oov_buckets))
            return vocabulary.first_id + len(vocabulary.keys) + bucket
        return -1 if vocabulary.oov_id is None else vocabulary.oov_id

    return [row(key) for key in keys]


@pytest.mark.parametrize("out_of_vocabulary", [{}, {"default_value": 1}, {"num_oov_buckets": 5}, {"default_value": -3}])
@pytest.mark.parametrize(
    "kind", ["words", "crlf", "open_end", "part", "gzip", "numbers", "int32", "list", "bytes", "ints"]
)
def test_keys_become_the_rows_that_tensorflow_gives(
    kind: str, out_of_vocabulary: dict[str, int], tmp_path: Path
) -> None:
    fc, words = tf.feature_column, ["a", "b b", "ünï", "4", " d"]
    file = tmp_path / ("words.tfrecord.gz" if kind == "gzip" else "words.txt")
    is_int = kind in ("numbers", "int32", "ints")
    keys: list[Any] = [7, -3, 2**40, 0, 5] if is_int else words
    unknown: list[Any] = [8, 6, -1] if is_int else ["A", "d", "zz"]
    if kind in ("int32",):
        keys[2] = 2**30
    if kind == "gzip":
        with tf.io.TFRecordWriter(str(file), "GZIP") as writer:
            for key in keys:
                writer.write(key.encode())
    else:
        end = "\r\n" if kind == "crlf" else "\n"
        text = end.join(str(key) for key in keys)
        file.write_bytes((text if kind == "open_end" else text + end).encode())
    size = {"vocabulary_size": 3} if kind == "part" else {}
    if kind in ("list", "bytes", "ints"):
        given = [key.encode() for key in keys] if kind == "bytes" else np.array(keys) if is_int else keys
        column = fc.categorical_column_with_vocabulary_list("k", given, **out_of_vocabulary)
    else:
        dtype = {"numbers": tf.int64, "int32": tf.int32}.get(kind, tf.string)
        column = fc.categorical_column_with_vocabulary_file("k", str(file), dtype=dtype, **size, **out_of_vocabulary)
    vocabulary = vocabulary_of(column, is_safe=True)
    assert vocabulary is not None and vocabulary.key_dtype == ("int64" if is_int else "string")
    asked = keys + unknown
    rows = rows_in_tensorflow(column, asked, tf.int64 if is_int else tf.string)
    assert rows_by_spec(vocabulary, asked) == [max(row, -1) for row in rows]
    assert vocabulary.on_oov == "drop"
    unsafe = vocabulary_of(column, is_safe=False)
    assert unsafe is not None and unsafe.on_oov == "error"


def test_an_identity_column_has_none() -> None:
    assert vocabulary_of(tf.feature_column.categorical_column_with_identity("i", 4), is_safe=True) is None


def test_a_file_that_is_not_as_said_is_refused(tmp_path: Path) -> None:
    make = tf.feature_column.categorical_column_with_vocabulary_file
    file = tmp_path / "words.txt"
    file.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(ValueError, match="vocabulary_file of k has 3 entries, vocabulary_size is 9"):
        vocabulary_of(make("k", str(file), vocabulary_size=9), is_safe=True)
    with pytest.raises(ValueError, match="vocabulary of k is not UTF-8"):
        vocabulary_of(make("k", str(file)), is_safe=True)
    with pytest.raises(ValueError, match="vocabulary of k: keys are integers, but"):
        vocabulary_of(make("k", str(file), dtype=tf.int64), is_safe=True)


def test_only_line_feeds_end_lines_of_a_vocabulary_file(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    keys = ["a\rb", "c\x0bd", "e\u2028f", "g"]
    file.write_bytes("\r\n".join(keys).encode())
    column = tf.feature_column.categorical_column_with_vocabulary_file("k", str(file))
    vocabulary = vocabulary_of(column, is_safe=True)
    assert vocabulary is not None and list(vocabulary.keys) == keys
    sent = tf.SparseTensor([[0, i] for i in range(4)], tf.constant(keys), [1, 4])
    assert column._transform_input_tensor(sent).values.numpy().tolist() == [0, 1, 2, 3]
