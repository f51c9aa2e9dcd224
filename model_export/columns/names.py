"""Makes names of tables and features, which SavedModel inputs can have, from the keys of columns.

A character that is no letter, digit or _ becomes _, a run of _ becomes one, _ at either end is removed, and a name that
would not start with a letter gets a prefix. Two keys that would become the same name are refused.

>>> safe_name("user/id", "feature"), safe_name("a__b.", "feature"), safe_name("2nd", "feature")
('user_id', 'a_b', 'feature_2nd')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from model_export.columns import tensorflow_columns


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
    """Returns the table object of a shared column; None for a column with a table of its own."""
    is_shared = isinstance(column, tensorflow_columns.TpuSharedColumn)
    return column.shared_embedding_column_creator if is_shared else None
