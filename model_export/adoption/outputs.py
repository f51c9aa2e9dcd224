"""Finds the signature outputs that hold only looked-up features: one feature, or several concatenated."""

from __future__ import annotations

from collections.abc import Mapping

from model_export.adoption.opened_graph import SignatureGraph
from model_export.tensorflow_setup import tf
from service.graph.flat_graph import node_of

# Ops whose output has the same numbers as their input, perhaps in another shape.
_RESHAPES = ("Identity", "Reshape", "Squeeze", "ExpandDims")
# Ops that only read or pass on a tensor. The message that says why an output is no lookup never names one of them.
_PLUMBING = frozenset(
    {*_RESHAPES, "Const", "Placeholder", "NoOp", "ReadVariableOp", "VarHandleOp", "Shape", "StridedSlice"}
)


def find_outputs(graph: SignatureGraph, tensors: Mapping[str, str]) -> dict[str, list[str]] | str:
    """Returns the names of the features that each output concatenates, or a text that says why an output is no lookup.

    Args:
      tensors: tensor of the graph -> name of the feature that it holds.
    """
    outputs = {}
    for name, tensor in graph.outputs.items():
        parts = _parts(graph, tensor, tensors)
        if isinstance(parts, str):
            return f"output {name!r} is computed from looked-up rows by {parts}"
        outputs[name] = parts
    return outputs


def _parts(graph: SignatureGraph, tensor: str, tensors: Mapping[str, str]) -> list[str] | str:
    """Returns the features that a tensor concatenates; or the name of the op that computes something else."""
    if tensor in tensors:
        return [tensors[tensor]]
    node = graph.flat.nodes[node_of(tensor)]
    inputs = graph.flat.data_inputs(node.name)
    if node.op in _RESHAPES:
        return _parts(graph, inputs[0], tensors)
    if node.op == "ConcatV2" and _is_last_axis(graph, tensor, inputs[-1]):
        parts: list[str] = []
        for part in inputs[:-1]:
            more = _parts(graph, part, tensors)
            if isinstance(more, str):
                return more
            parts += more
        return parts
    return str(node.op)


def _is_last_axis(graph: SignatureGraph, tensor: str, axis: str) -> bool:
    node = graph.flat.nodes[node_of(axis)]
    # If an output concatenates features, its rank is 2, so axis 1 is its last axis.
    return node.op == "Const" and int(tf.make_ndarray(node.attr["value"].tensor)) in (1, -1)
