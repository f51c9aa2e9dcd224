"""Creates the slot variables of a table, with the same names as in a TPU's checkpoint.

Source: get_default_slot_variable_names in tensorflow/python/tpu/tpu_embedding.py at v2.15.1.
"""

from __future__ import annotations

from typing import Any

from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
)
from model_export.tensorflow_setup import tf
from model_export.training.table_parts import mark_part, part_of


def create_slots(table: str, variable: Any, parameters: OptimizationParameters) -> tuple[Any, ...]:
    """Adds a table's slots to the current graph, as global variables of the table's shape that are not trainable.

    Adagrad has accumulator; Adam m and v; FTRL accumulator and linear; Momentum momenta; SGD none.
    The slots of a part of a table are parts of the table's slots, on the same device as the part.

    Raises:
      ValueError: the graph has a variable of that name.
    """
    return tuple(_slot(table, variable, suffix, initial) for suffix, initial in _slots(parameters))


def _slot(table: str, variable: Any, suffix: str, initial: float) -> Any:
    v1, part = tf.compat.v1, part_of(variable)
    if part is not None:
        table = part.full_name
    name = f"{table}/{suffix}"
    # A slot variable is created in the root scope, so that its name does not depend on the caller's scope.
    root = v1.variable_scope(v1.VariableScope(reuse=False, name=""), auxiliary_name_scope=False)
    with root, v1.name_scope(None), tf.device(variable.device):
        slot = v1.get_variable(
            name if part is None else f"{name}/{variable.op.name.rpartition('/')[2]}",
            shape=variable.shape,
            dtype=variable.dtype.base_dtype,
            initializer=v1.constant_initializer(initial),
            trainable=False,
            use_resource=True,
        )
    if part is not None:
        mark_part(slot, name, part.full_shape, part.var_offset[0])
    return slot


def _slots(parameters: OptimizationParameters) -> tuple[tuple[str, float], ...]:
    match parameters:
        case AdagradParameters():
            return (("Adagrad", parameters.initial_accumulator),)
        case AdamParameters():
            return (("Adam/m", 0.0), ("Adam/v", 0.0))
        case FtrlParameters():
            return (("Ftrl", parameters.initial_accumulator_value), ("Ftrl_1", parameters.initial_linear_value))
        case MomentumParameters():
            return (("Momentum", 0.0),)
        case _:
            return ()
