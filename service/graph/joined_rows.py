"""Tensors that are nothing but looked-up features side by side, so that a lookup can write them as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from service.graph.flat_graph import FlatGraph, node_of


def joined_rows(
    flat: FlatGraph, left: Collection[str], sources: Collection[str], outputs: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Finds where a graph puts sources side by side and does nothing else with them.

    Args:
      left: nodes that run behind the sources.
      sources: tensors, [B, D] float32 each.
      outputs: tensors that are fetched, which what is fed can not be.

    Returns:
      [B, all D] tensors that may be fed in place of sources, and those in their order.
    """
    readers = Counter(tensor for name in left for tensor in flat.data_inputs(name))
    waited_for = {node_of(i) for name in left for i in flat.nodes[name].input if i.startswith("^")}
    found = {}
    for name in sorted(left):
        tensor = f"{name}:0"
        if flat.nodes[name].op != "ConcatV2" or tensor in outputs or name in waited_for:
            continue
        *parts, axis = flat.data_inputs(name)
        are_whole = all(part in sources and readers[part] == 1 for part in parts)
        if len(parts) > 1 and are_whole and _is_last_of_two(flat, axis):
            found[tensor] = tuple(parts)
    return found


def _is_last_of_two(flat: FlatGraph, axis: str) -> bool:
    import tensorflow as tf

    node = flat.nodes[node_of(axis)]
    return node.op == "Const" and tf.make_ndarray(node.attr["value"].tensor).tolist() in (1, -1)
