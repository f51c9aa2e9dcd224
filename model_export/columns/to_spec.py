"""Describes embedding columns as a ModelSpec: their tables, their features and their policies for bad ids and weights.

Keys of columns become names that SavedModel inputs can have: a character that is no letter, digit or _ becomes _, a run
of _ becomes one, _ at either end is removed, and a name that would not start with a letter gets a prefix. Two keys that
would become the same name are refused.

>>> safe_name("user/id", "feature"), safe_name("a__b.", "feature"), safe_name("2nd", "feature")
('user_id', 'a_b', 'feature_2nd')

The policies are those of TensorFlow's CPU lookup of the column: safe_embedding_lookup_sparse, or
embedding_lookup_sparse if use_safe_embedding_lookup is off.

| column | on_bad_id | on_nonpositive_weight |
|---|---|---|
| identity with default_value | default_row: that value | as below |
| safe, and every sequence | drop_negative | drop, with sum keep |
| unsafe | error | keep |

A column of device tpu_tensor_core keeps weights of 0 or less, as the padded lookup does; its CPU lookup therefore
differs from TensorFlow's for a mean over weights below 0. The padded lookup cuts a row that is longer than
tensor_core_shape allows (on_too_many_ids "truncate"), as in TensorFlow. TensorFlow has no padded lookup without that
shape; then a row of more than max_ids_per_row ids is an error.

Source: TensorFlow 2.21, python/ops/embedding_ops.py and python/tpu/feature_column_v2.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from model_export.columns import tensorflow_columns
from model_export.columns.checks import TENSOR_CORE, innermost
from model_export.columns.tensorflow_columns import EmbeddingDevice, IdentityColumn
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.dict_vocabulary import lines_of
from service.artifact.manifest import BadIdPolicy, Combiner


def safe_name(key: str, prefix: str) -> str:
    """Makes a name of letters, digits and single _ from a column key; adds the prefix if it would not begin with a
    letter.
    """
    name = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9]", "_", key)).strip("_")
    return name if re.match("[a-zA-Z]", name) else f"{prefix}_{name}".strip("_")


def checked_columns(feature_columns: Any) -> list[Any]:
    """Checks that all columns are TPU embedding columns, and returns them as a list.

    Args:
      feature_columns: one column or several, of model_export's functions or of tf.compat.v1.tpu.experimental's.

    Raises:
      TypeError: one of them is another kind of column.
    """
    kinds = (tensorflow_columns.TpuEmbeddingColumn, tensorflow_columns.TpuSharedColumn)
    columns = [feature_columns] if isinstance(feature_columns, kinds) else list(feature_columns)
    for column in columns:
        if not isinstance(column, kinds):
            raise TypeError(
                f"feature_columns must be made by embedding_column or shared_embedding_columns, got {type(column)}."
            )
    return columns


def feature_names(feature_columns: Any) -> Mapping[str, Any]:
    """Maps feature names to the columns, in the given order. A weighted column is named by the key of its ids.

    Raises:
      ValueError: two columns read one feature, or two keys become the same name.
    """
    names: dict[str, Any] = {}
    for column in checked_columns(feature_columns):
        key = column.get_feature_key_name()
        name = safe_name(key, "feature")
        if name in names:
            other = names[name].get_feature_key_name()
            if other == key:
                raise ValueError(f"Feature column {key} is used with multiple embeddings and this is not supported.")
            raise ValueError(f"features {other!r} and {key!r} would both be named {name!r}; rename one of them")
        names[name] = column
    return names


def table_names(feature_columns: Any) -> Mapping[str, Sequence[Any]]:
    """Maps table names to each table's columns. A name comes from the collection or from the categorical column.

    Raises:
      ValueError: two different tables would have the same name.
    """
    names: dict[str, list[Any]] = {}
    for column in checked_columns(feature_columns):
        name = safe_name(column.get_embedding_var_name(), "table")
        for other in names.get(name, []):
            if shared_table(other) is None or shared_table(other) is not shared_table(column):
                raise ValueError(f"tables of columns {other.name!r} and {column.name!r} would both be named {name!r}")
        names.setdefault(name, []).append(column)
    return names


def shared_table(column: Any) -> Any:
    is_shared = isinstance(column, tensorflow_columns.TpuSharedColumn)
    return column.shared_embedding_column_creator if is_shared else None


def model_spec(feature_columns: Any, *, max_ids_per_row: int = 32) -> ModelSpec:
    """Returns the tables and features of embedding columns, with the policies of the columns' lookups.

    Args:
      feature_columns: made by embedding_column and shared_embedding_columns, of model_export or of TensorFlow.
      max_ids_per_row: K of columns without a tensor_core_shape.

    Raises:
      TypeError: one is another kind of column, or its categorical column is of an unknown class.
      ValueError: two names collide, or a vocabulary can not be read.
    """
    tables = tuple(_table(name, columns[0]) for name, columns in table_names(feature_columns).items())
    features = tuple(_feature(name, column, max_ids_per_row) for name, column in feature_names(feature_columns).items())
    return ModelSpec(tables, features)


def device_of(column: Any) -> str | None:
    device = getattr(column, "_embedding_lookup_device", None)
    return None if device is None else EmbeddingDevice(device).name.lower()


def _table(name: str, column: Any) -> TableSpec:
    rows, dimension = column.get_embedding_table_size()
    stddev = getattr(column.get_initializer(), "stddev", 1 / math.sqrt(dimension))
    combiner: Combiner = column.get_combiner() or "mean"
    return TableSpec(name, int(rows), dimension, combiner, stddev)


def _feature(name: str, column: Any, max_ids_per_row: int) -> FeatureSpec:
    ids = innermost(column.categorical_column)
    length = column.get_max_sequence_length()
    is_safe = bool(column.use_safe_embedding_lookup or length)
    combiner: Combiner = column.get_combiner() or "mean"
    shape = getattr(column, "_tensor_core_shape", None)
    prunes_weights = is_safe and combiner != "sum" and device_of(column) != TENSOR_CORE and not length
    default = ids.default_value if isinstance(ids, IdentityColumn) else None
    on_bad_id: BadIdPolicy = "drop_negative" if is_safe else "error"
    return FeatureSpec(
        name,
        safe_name(column.get_embedding_var_name(), "table"),
        is_ragged=True,
        max_ids_per_row=1 if length else (shape[1] if shape else max_ids_per_row),
        combiner=None if length else combiner,
        max_sequence_length=length,
        vocabulary=_vocabulary(column, ids, is_safe),
        on_bad_id=on_bad_id if default is None else "default_row",
        default_id=default or 0,
        on_nonpositive_weight="drop" if prunes_weights else "keep",
        on_too_many_ids="truncate" if shape and not length else "error",
    )


def _vocabulary(column: Any, ids: Any, is_safe: bool) -> Any:
    vocabulary = vocabulary_of(ids, is_safe=is_safe)
    if vocabulary is None and not isinstance(ids, IdentityColumn):
        raise TypeError(f"column {column.name!r}: a categorical column of {type(ids)} has no known mapping to rows")
    return vocabulary


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
