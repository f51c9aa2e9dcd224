"""The parts of a table that lies in several variables of a TensorFlow 1 graph, one for each parameter server.

The parts have consecutive rows. A checkpoint holds the parts under the name of the whole table, so it can be read into
one variable, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_export.tensorflow_setup import tf


def mark_part(variable: Any, full_name: str, full_shape: Sequence[int], first: int) -> None:
    """Makes savers store a variable as the rows from `first` on of a larger variable."""
    info = tf.Variable.SaveSliceInfo(full_name, list(full_shape), [first, 0], variable.shape.as_list())
    variable._set_save_slice_info(info)


def part_of(variable: Any) -> Any:
    """Returns the SaveSliceInfo of a part of a table; None for a whole variable."""
    return variable._get_save_slice_info()


def parts_of(variable: Any) -> list[Any]:
    """Returns the parts of a PartitionedVariable in the order of their rows; for another variable, a list of it."""
    return list(variable) if hasattr(variable, "_get_variable_list") else [variable]


def name_of(variable: Any) -> str:
    """Returns the name of a variable in a checkpoint; its parts have this name there, too."""
    first = parts_of(variable)[0]
    info = part_of(first)
    name: str = first.op.name if info is None else info.full_name
    return name
