"""Reads from a signature's graph the order in which it adds up the rows of each feature (`LookupFeature.summation`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from model_export.tensorflow_setup import tf
from service.artifact.manifest import UNWEIGHTED, SignatureEntry, Summation
from service.graph.flat_graph import FlatGraph, flatten, node_of

# The ops that add up rows, and the order in which each adds. tests/unit/core/test_summation.py compares the kernels
# with these ops.
_ORDERS: Mapping[str, Summation] = {
    **{
        f"SparseSegment{name}{end}": "blocks_of_8"
        for name in ("Sum", "Mean", "SqrtN")
        for end in ("", "WithNumSegments")
    },
    **dict.fromkeys(("SegmentSum", "SegmentSumV2"), "four_lanes"),
    "SegmentMean": "segment_mean",
    **dict.fromkeys(("UnsortedSegmentSum", "Sum"), "in_order"),
}
_GATHERS = ("ResourceGather", "GatherV2", "Gather")


def with_summations(entry: SignatureEntry, meta_graph: Any, signature: str) -> SignatureEntry:
    """Returns a predict signature's entry in which each combined feature has the order of additions of its graph.

    A feature keeps its order if no op, or ops of different orders, add up its rows; the server then leaves its sums to
    the graph.
    """
    definition = meta_graph.signature_def[signature]
    flat = flatten(meta_graph.graph_def, [info.name for info in definition.outputs.values()])
    readers = _readers(flat)
    features = {}
    for name, feature in entry.features.items():
        features[name] = feature
        if feature.combiner is not None:
            start = node_of(flat.resolved(definition.inputs[feature.ids].name))
            orders = set(_orders(flat, readers, start))
            if len(orders) == 1 and not (feature.weights and orders <= {*UNWEIGHTED}):
                features[name] = dataclasses.replace(feature, summation=orders.pop())
    return dataclasses.replace(entry, features=features)


def order_of(flat: FlatGraph, rows: Iterable[str], tensor: str) -> Summation | None:
    """Returns the order in which a tensor's ops add gathered rows; None if no op adds them, or several orders do."""
    within = flat.ancestors([tensor]) | {node_of(tensor)}
    starts = [node_of(name) for name in rows]
    found = {
        _ORDERS[flat.nodes[name].op]
        for name in _downstream(flat, _readers(flat), starts, stops=_is_sum)
        if name in within and _is_sum(flat.nodes[name])
    }
    return found.pop() if len(found) == 1 else None


def _readers(flat: FlatGraph) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for name in flat.nodes:
        for tensor in flat.data_inputs(name):
            readers.setdefault(node_of(tensor), []).append(name)
    return readers


def _orders(flat: FlatGraph, readers: Mapping[str, list[str]], ids: str) -> Iterator[Summation]:
    for gather in _downstream(flat, readers, [ids], stops=_is_row_gather):
        if not _is_row_gather(flat.nodes[gather]):
            continue
        for name in _downstream(flat, readers, [gather], stops=_is_sum):
            if _is_sum(flat.nodes[name]):
                yield _ORDERS[flat.nodes[name].op]


def _downstream(flat: FlatGraph, readers: Mapping[str, list[str]], starts: list[str], *, stops: Any) -> Iterator[str]:
    seen, todo = set(starts), list(starts)
    for name in todo:
        for reader in readers.get(name, ()):
            if reader not in seen:
                seen.add(reader)
                yield reader
                if not stops(flat.nodes[reader]):
                    todo.append(reader)


def _is_row_gather(node: Any) -> bool:
    # A graph also gathers and adds up integers, such as ids and row lengths.
    return node.op in _GATHERS and _is_floating(node.attr["dtype"].type or node.attr["Tparams"].type)


def _is_sum(node: Any) -> bool:
    return node.op in _ORDERS and _is_floating(node.attr["T"].type)


def _is_floating(dtype: int) -> bool:
    return bool(tf.as_dtype(dtype).is_floating)
