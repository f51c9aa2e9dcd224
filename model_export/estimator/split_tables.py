"""Splits a table's variable of a TensorFlow 1 graph into one variable for each parameter server.

The parts have consecutive rows, as tf.nn.embedding_lookup expects with partition_strategy "div".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from model_export.tensorflow_setup import tf
from model_export.training.table_parts import mark_part

# Classes of initializers that draw each number independently: each part of a table can draw its own rows.
_DRAWN = ("TruncatedNormal", "RandomNormal", "RandomUniform", "Zeros", "Ones")
# The distance between the seeds of neighbouring parts of a table: parts with the same seed would start with the same
# rows.
_SEED_STEP = 1009


def split_variable(create: Callable[..., Any], arguments: dict[str, Any], parts: int) -> Any:
    """Creates the parts of a [V, D] variable, and returns them as one PartitionedVariable; parts is in [1, V].

    Args:
      create: creator of one variable, as tf.compat.v1.variable_creator_scope passes it.
      arguments: the creator's arguments for the whole variable.
    """
    from tensorflow.python.ops.variables import PartitionedVariable

    name, shape = arguments["name"], _shape(arguments)
    full_name = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False)
    variables, first = [], 0
    for number in range(parts):
        rows = shape[0] // parts + (number < shape[0] % parts)
        initial = functools.partial(_initial_rows, arguments["initial_value"], shape, first, rows, number)
        changed = {"name": f"{name}/part_{number}", "initial_value": initial, "shape": tf.TensorShape([rows, shape[1]])}
        variable = create(**{**arguments, **changed})
        mark_part(variable, full_name, shape, first)
        variables.append(variable)
        first += rows
    return PartitionedVariable(full_name, shape, variables[0].dtype.base_dtype, variables, [parts, 1])


def number_of_rows(arguments: dict[str, Any]) -> int:
    """Returns V of a [V, D] variable from the arguments that TensorFlow gives to a variable creator."""
    return _shape(arguments)[0]


def _shape(arguments: dict[str, Any]) -> list[int]:
    shape = arguments.get("shape")
    if shape is None or tf.TensorShape(shape).rank is None:
        initial = arguments["initial_value"]
        keywords = getattr(initial, "keywords", {})
        shape = keywords["shape"] if "shape" in keywords else initial.args[0]
    return list(map(int, tf.TensorShape(shape).as_list()))


def _initial_rows(initial: Any, shape: list[int], first: int, rows: int, number: int) -> Any:
    draw: Any = getattr(initial, "func", None)
    if type(draw).__name__ in _DRAWN:
        settings = draw.get_config()
        if settings.get("seed") is not None:
            draw = type(draw).from_config({**settings, "seed": settings["seed"] + number * _SEED_STEP})
        return draw([rows, shape[1]], dtype=initial.keywords.get("dtype"))
    return (initial() if callable(initial) else initial)[first : first + rows]
