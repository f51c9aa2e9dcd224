"""Names of tables and features: what a SavedModel's inputs may be called, made of column keys.

A character that is no letter, digit or _ becomes _, a run of _ becomes one, _ at either end goes, and a name that would
not begin with a letter gets a prefix. Two keys that become one name are refused.

>>> safe_name("user/id", "feature"), safe_name("a__b.", "feature"), safe_name("2nd", "feature")
('user_id', 'a_b', 'feature_2nd')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from model_export.columns import tensorflow_columns


def safe_name(key: str, prefix: str) -> str:
    """Returns a key as a name of letters, digits and single _."""
    name = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9]", "_", key)).strip("_")
    return name if re.match("[a-zA-Z]", name) else f"{prefix}_{name}".strip("_")


def checked_columns(feature_columns: Any) -> list[Any]:
    """Returns embedding columns as a list.

    Args:
      feature_columns: one column or several, of model_export's functions or of tf.compat.v1.tpu.experimental's.

    Raises:
      TypeError: something else among them.
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
    """Returns feature name -> column, in the given order. The key of a weighted column is that of its ids.

    Raises:
      ValueError: two columns read one feature, or two keys become one name.
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
    """Returns table name -> the columns that read it; named by the collection, or by the categorical column.

    Raises:
      ValueError: columns that share no table would share a name.
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
    """Returns the table object of a shared column; None for a column with a table of its own."""
    is_shared = isinstance(column, tensorflow_columns.TpuSharedColumn)
    return column.shared_embedding_column_creator if is_shared else None
