"""Vocabularies of columns give the rows that TensorFlow's own tables give for the same keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.features import VocabularySpec
from tests.unit.model_export.columns.column_cases import sparse

pytestmark = pytest.mark.tf


def rows_in_tensorflow(column: Any, keys: list[Any], dtype: Any) -> list[int]:
    """Returns the rows to which a column's own vocabulary maps keys."""
    from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

    cache = FeatureTransformationCache({column.key: sparse([keys], dtype)})
    rows: list[int] = column.get_sparse_tensors(cache, None).id_tensor.values.numpy().tolist()
    return rows


def rows_by_spec(vocabulary: VocabularySpec, keys: list[Any]) -> list[int]:
    """Returns the rows that a VocabularySpec gives for keys; -1 for a key that is dropped or refused."""
    from model_export.tensorflow_setup import tf

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
    from model_export.columns.to_spec import vocabulary_of
    from model_export.tensorflow_setup import tf

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
    from model_export.columns.to_spec import vocabulary_of
    from model_export.tensorflow_setup import tf

    assert vocabulary_of(tf.feature_column.categorical_column_with_identity("i", 4), is_safe=True) is None


def test_a_file_that_is_not_as_said_is_refused(tmp_path: Path) -> None:
    from model_export.columns.to_spec import vocabulary_of
    from model_export.tensorflow_setup import tf

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
    from model_export.columns.to_spec import vocabulary_of
    from model_export.tensorflow_setup import tf

    file = tmp_path / "words.txt"
    keys = ["a\rb", "c\x0bd", "e\u2028f", "g"]
    file.write_bytes("\r\n".join(keys).encode())
    column = tf.feature_column.categorical_column_with_vocabulary_file("k", str(file))
    vocabulary = vocabulary_of(column, is_safe=True)
    assert vocabulary is not None and list(vocabulary.keys) == keys
    sent = tf.SparseTensor([[0, i] for i in range(4)], tf.constant(keys), [1, 4])
    assert column._transform_input_tensor(sent).values.numpy().tolist() == [0, 1, 2, 3]
