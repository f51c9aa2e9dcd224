"""Variables that nothing writes, as constants: runs without reads are shorter, and the optimizer knows the values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from service.core.types import Array
from service.graph.flat_graph import node_of
from service.graph.restoring import Saved, add_values

# Reading a larger one costs nothing beside what is done with it; all of them are held in a GraphDef for a while.
_MOST_BYTES, _MOST_BYTES_IN_ALL = 16 << 20, 256 << 20


def freeze(nodes: dict[str, Any], saved: Mapping[str, Saved], prefix: str) -> None:
    """Puts constants in the place of what reads variables, where that is all that is done with them.

    Args:
      nodes: of a graph, by name; changed.
      prefix: of the checkpoint: its path without ".index".
    """
    readers = _readers(nodes)
    chosen = _small(nodes, sorted(readers.keys() & saved.keys()))
    for handle, value in _values(saved, chosen, prefix).items():
        for name in readers[handle]:
            nodes[name] = _constant(nodes[name], value)
        del nodes[handle]


def _readers(nodes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns variables that are read and nothing else -> the nodes that read them."""
    found: dict[str, list[str]] = {name: [] for name, node in nodes.items() if node.op == "VarHandleOp"}
    for name, node in nodes.items():
        for tensor in node.input:
            handle = node_of(tensor.removeprefix("^"))
            if node.op == "ReadVariableOp" and handle in found:
                found[handle].append(name)
            else:
                found.pop(handle, None)
    return found


def _small(nodes: Mapping[str, Any], handles: Iterable[str]) -> list[str]:
    import tensorflow as tf

    chosen, total = [], 0
    for handle in handles:
        attr = nodes[handle].attr
        shape, dtype = tf.TensorShape(attr["shape"].shape), tf.as_dtype(attr["dtype"].type)
        if not shape.is_fully_defined() or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            continue
        size = math.prod(shape.as_list()) * dtype.size
        if size <= _MOST_BYTES and total + size <= _MOST_BYTES_IN_ALL:
            chosen.append(handle)
            total += size
    return chosen


def _values(saved: Mapping[str, Saved], handles: list[str], prefix: str) -> dict[str, Array]:
    import tensorflow as tf

    v1 = tf.compat.v1
    graph_def = v1.GraphDef()
    tensors = add_values(graph_def, [saved[handle] for handle in handles], prefix)
    if not tensors:
        return {}
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    with v1.Session(graph=graph) as session:
        return dict(zip(handles, session.run(tensors), strict=True))


def _constant(reader: Any, value: Array) -> Any:
    import tensorflow as tf

    node = type(reader)(name=reader.name, op="Const")
    node.input.extend(tensor for tensor in reader.input if tensor.startswith("^"))
    node.attr["dtype"].CopyFrom(reader.attr["dtype"])
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return node
