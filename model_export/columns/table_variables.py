"""Which variable of a graph or checkpoint is which table of the spec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.columns.names import shared_table, table_names


@dataclass(frozen=True, slots=True)
class TableVariable:
    """A table's variable: its name, without :0, and shape [V, D]."""

    name: str
    shape: tuple[int, int]


def table_variables(
    feature_columns: Any, *, dense_layer: str = "dense_features", sequence_layer: str = "sequence_features"
) -> dict[str, TableVariable]:
    """Returns table -> its variable in a v1 graph where the columns stand in one DenseFeatures or SequenceFeatures.

    Args:
      dense_layer, sequence_layer: scope of the layer that holds the columns, or the sequence columns.
    """
    found = {}
    for table, columns in table_names(feature_columns).items():
        layer = sequence_layer if columns[0].is_sequence_column() else dense_layer
        name = _own_name(columns[0])
        if shared_table(columns[0]) is None:
            name = f"{layer}/{name}"
        found[table] = TableVariable(name, columns[0].get_embedding_table_size())
    return found


def find_table_variables(feature_columns: Any, available: Mapping[str, Sequence[int]]) -> dict[str, TableVariable]:
    """Returns table -> the one variable among a graph's or checkpoint's that holds it, whatever the layer is called.

    Args:
      available: variable name, without :0 -> shape, such as dict(tf.train.list_variables(checkpoint)).

    Raises:
      ValueError: no variable of the name and shape of a table, or several.
    """
    found = {}
    for table, columns in table_names(feature_columns).items():
        name, shape = _own_name(columns[0]), tuple(columns[0].get_embedding_table_size())
        is_shared = shared_table(columns[0]) is not None
        fitting = [
            variable
            for variable, size in available.items()
            if (variable == name or (not is_shared and variable.endswith(f"/{name}"))) and tuple(size) == shape
        ]
        if len(fitting) != 1:
            raise ValueError(
                f"table {table!r} is a variable {'' if is_shared else '.../'}{name} of shape {list(shape)}; found "
                f"{fitting or 'none'} among {sorted(available)}"
            )
        found[table] = TableVariable(fitting[0], shape)
    return found


def _own_name(column: Any) -> str:
    # As TensorFlow's layers name the scope of a column; a shared table has its collection's name and no scope.
    if shared_table(column) is not None:
        return str(column.get_embedding_var_name())
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", column.name) + "/embedding_weights"
