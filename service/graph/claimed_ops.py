"""Decides which tensors behind a gather may stand for a lookup, by the ops between the gather and the tensor.

Probe requests read only some of a table's rows, by some ids. So a tensor is compared with a lookup only if the ops on
its way treat all rows alike and all ids alike: rows are moved, weighted and added up, whatever numbers they hold, and
which ids count was decided before the gather. A clip, a ReLU or a bound on norms changes few rows of a table, perhaps
none of those that the probes read; a mask on ids changes few ids, and another input few requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from service.artifact import tensor_proto
from service.graph.flat_graph import FlatGraph, constant_of, node_of
from service.graph.table_reads import TableRead

# Ops that say the shape of their input, or give each element the same number: their result holds no row and no id.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
# Ops whose elements are elements of their data inputs.
_MOVES = frozenset(
    {
        *("Identity", "Snapshot", "StopGradient", "PreventGradient", "EnsureShape"),
        *("Reshape", "ExpandDims", "Squeeze", "GatherV2", "GatherNd", "Slice", "StridedSlice", "Tile", "BroadcastTo"),
        *("Pad", "PadV2", "Pack", "ConcatV2", "Fill", "Select", "SelectV2", "Transpose"),
        *("RaggedTensorToTensor", "RaggedTensorToSparse", "SparseFillEmptyRows", "Unique", "SparseReshape"),
        *("DynamicPartition", "DynamicStitch", "ParallelDynamicStitch"),
    }
)
# Ops that add rows up: the rows are their first input.
_SUMS = frozenset(
    {
        *("Sum", "Mean", "SegmentSum", "SegmentMean", "UnsortedSegmentSum"),
        *(f"SparseSegment{how}{end}" for how in ("Sum", "Mean", "SqrtN") for end in ("", "WithNumSegments")),
    }
)
# Numbers of the inputs by which an op may take rows; other ops that move elements may take rows by any input.
_ROW_INPUTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(_SUMS, (0,)),
    **dict.fromkeys(("RealDiv", "DivNoNan", "MulNoNan"), (0,)),
    **dict.fromkeys(("GatherV2", "GatherNd", "Slice", "StridedSlice", "Reshape", "Tile", "BroadcastTo"), (0,)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    "RaggedTensorToTensor": (1,),
}
# Ops that bound the norms of rows (max_norm).
_NORMS = frozenset(
    {
        *("Mul", "Square", "Sqrt", "Rsqrt", "Maximum", "Minimum", "Greater", "GreaterEqual", "Less", "LessEqual"),
        *("RealDiv", "DivNoNan", "Select", "SelectV2", "Cast"),
    }
)
# Ops that decide by the numbers of their inputs, and give truth values.
_COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"})
_TRUTHS = _COMPARISONS | {"LogicalAnd", "LogicalOr", "LogicalNot"}
# Ops by which ids may come to a gather where the manifest does not say that they are right: probes lie on both sides of
# each number that ids are compared with, and hold the keys of vocabularies.
_PROBED = (
    _MOVES
    | _TRUTHS
    | {"Where", "Maximum", "Minimum", "Cast", "AsString", "StringToHashBucketFast", "LookupTableFindV2"}
)


class Claimed(NamedTuple):
    """The part of the graph that a claim is about.

    keys: the placeholder of the feature's ids or keys. inputs: the placeholders of all inputs of the feature.
    is_described: the manifest describes the feature for this signature, so that its ids are known to be right.
    bounds_norms: the lookup has a max_norm, so that the graph may compare norms of rows.
    """

    keys: str
    inputs: Collection[str]
    is_described: bool
    bounds_norms: bool


def treats_alike(flat: FlatGraph, tensor: str, read: TableRead, claimed: Claimed) -> bool:
    """Says whether the ops between a feature's inputs and a tensor behind a gather treat all rows and all ids alike."""
    before = flat.ancestors([read.ids])
    behind = flat.ancestors([tensor], cut=frozenset({read.rows})) - before
    if any(flat.nodes[name].op.startswith("Placeholder") and name not in claimed.inputs for name in before | behind):
        return False
    of_rows = _reached(flat, behind, node_of(read.rows), _SHAPES)
    # Which ids count before the gather is part of the claim; positions and counts of these ids are layout.
    decided = {name for name in before if flat.nodes[name].op in _TRUTHS}
    of_keys = _reached(flat, before | behind, claimed.keys, _SHAPES, decided)
    for name in behind:
        op = flat.nodes[name].op
        if name in of_rows:
            if not (_treats_rows_alike(flat, name, of_rows) or (claimed.bounds_norms and op in _NORMS)):
                return False
        elif name in of_keys and op not in _MOVES:
            return False
    if claimed.is_described:
        return True
    of_keys = _reached(flat, before, claimed.keys, _SHAPES) - {claimed.keys}
    return all(flat.nodes[name].op in _PROBED for name in of_keys)


def layout_sizes(flat: FlatGraph, tensor: str, read: TableRead, claimed: Claimed) -> set[int]:
    """Returns the integer constants with which a graph may compare row lengths, on the way to a tensor."""
    between = flat.ancestors([tensor], cut=frozenset({read.rows})) | flat.ancestors([read.ids])
    of_keys = _reached(flat, between, claimed.keys, _SHAPES)
    found: set[int] = set()
    for name in between - of_keys:
        for given in flat.data_inputs(name):
            constant = flat.nodes[node_of(given)]
            if constant.op == "Const" and constant.attr["dtype"].type in tensor_proto.NUMPY_DTYPES:
                numbers = constant_of(constant)
                found.update(numbers.reshape(-1).tolist() if numbers.dtype.kind in "iu" else ())
    return found


def _treats_rows_alike(flat: FlatGraph, name: str, of_rows: Collection[str]) -> bool:
    op = flat.nodes[name].op
    places = [place for place, given in enumerate(flat.data_inputs(name)) if node_of(given) in of_rows]
    if op == "Mul":
        return len(places) == 1
    if op in _ROW_INPUTS:
        return set(places) <= set(_ROW_INPUTS[op])
    return op in _MOVES


def _reached(
    flat: FlatGraph, nodes: Iterable[str], start: str, ends: Collection[str], stops: Collection[str] = ()
) -> set[str]:
    """Returns the node `start` and those of `nodes` whose values depend on it.

    Args:
      ends: ops whose results do not depend on the values of their inputs.
      stops: nodes at which the search ends.
    """
    readers: dict[str, list[str]] = {}
    for name in nodes:
        if flat.nodes[name].op not in ends and name not in stops:
            for given in flat.data_inputs(name):
                readers.setdefault(node_of(given), []).append(name)
    found, todo = {start}, [start]
    for name in todo:
        for reader in readers.get(name, ()):
            if reader not in found:
                found.add(reader)
                todo.append(reader)
    return found
