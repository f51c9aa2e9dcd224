"""Reads and writes the values of a graph's constants, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.artifact import dtypes
from service.artifact.tensor_proto import decode_tensor
from service.errors import ArtifactError, ServiceError
from service.types import Array

# The most elements of an array: numpy's own limit.
_ANY_SIZE = 1 << 60


def constant_of(node: Any) -> Array:
    """Returns the value of a Const node; strings are an object array of bytes.

    Raises ArtifactError for a dtype that numpy lacks.
    """
    try:
        return decode_tensor(node.name, node.attr["value"].tensor, _ANY_SIZE)
    except ServiceError as error:
        raise ArtifactError(f"constant {node.name!r} can not be read: {error.message}") from error


def add_strings(graph_def: Any, name: str, values: Sequence[str], *, is_scalar: bool = False) -> None:
    """Adds a Const node of strings to a GraphDef: of rank 1, or of rank 0 with one string if is_scalar."""
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = dtypes.STRING
    tensor = node.attr["value"].tensor
    tensor.dtype = dtypes.STRING
    tensor.tensor_shape.SetInParent()
    if not is_scalar:
        tensor.tensor_shape.dim.add().size = len(values)
    tensor.string_val.extend(value.encode() for value in values)
