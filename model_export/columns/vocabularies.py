"""Converts the vocabulary of a categorical column to a VocabularySpec."""

from __future__ import annotations

from typing import Any

from model_export.columns import tensorflow_columns
from model_export.spec.features import VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.vocabulary_lines import lines_of


def vocabulary_of(column: Any, *, is_safe: bool) -> VocabularySpec | None:
    """Returns the vocabulary of a categorical column; None for an identity column, whose ids are rows.

    Args:
      column: an identity, vocabulary-file or vocabulary-list column.
      is_safe: whether use_safe_embedding_lookup is on. TensorFlow gives a key outside the vocabulary, without default
        or bucket, an id below 0: a safe lookup drops that id, and another lookup fails.

    Raises:
      ValueError: the vocabulary file does not fit the column.
    """
    if isinstance(column, tensorflow_columns.VocabularyFileColumn):
        lines = _lines(column)
    elif isinstance(column, tensorflow_columns.VocabularyListColumn):
        lines = list(column.vocabulary_list)
    else:
        return None
    keys = _integers(column, lines) if column.dtype.is_integer else _strings(column, lines)
    default = column.default_value
    return VocabularySpec(
        keys,
        oov_id=default if default >= 0 and not column.num_oov_buckets else None,
        num_oov_buckets=column.num_oov_buckets,
        on_oov="drop" if is_safe else "error",
    )


def _lines(column: Any) -> list[bytes]:
    if column.file_format == "tfrecord_gzip":
        lines = [record.numpy() for record in tf.data.TFRecordDataset(column.vocabulary_file, "GZIP")]
    else:
        with tf.io.gfile.GFile(column.vocabulary_file, "rb") as file:
            lines = list(lines_of(file.read()))
    size = int(column.vocabulary_size)
    if len(lines) < size:
        raise ValueError(f"vocabulary_file of {column.key} has {len(lines)} entries, vocabulary_size is {size}")
    return lines[:size]


def _integers(column: Any, lines: list[Any]) -> tuple[int, ...]:
    try:
        return tuple(int(line) for line in lines)
    except ValueError as error:
        raise ValueError(f"vocabulary of {column.key}: keys are integers, but {error}") from error


def _strings(column: Any, lines: list[Any]) -> tuple[str, ...]:
    try:
        return tuple(line.decode() if isinstance(line, bytes) else str(line) for line in lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"vocabulary of {column.key} is not UTF-8: {error}") from error
