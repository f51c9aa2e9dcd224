"""Decides which tensors behind a gather may stand for a lookup, by the ops between the gather and the tensor.

Probe requests read only some of a table's rows, by some ids. So a tensor is compared with a lookup only if the ops on
its way treat all rows alike and all ids alike: rows are moved, weighted and added up, whatever numbers they hold, and
which ids count was decided before the gather. A clip, a ReLU or a bound on norms changes few rows of a table, perhaps
none of those that the probes read; a mask on ids changes few ids, and another input few requests.

What is layout (sizes and positions) may be any arithmetic that shows itself in requests of the sizes that the graph
names: integers may be compared, and the probes lie beside them and their sums and differences. Numbers that could make
other thresholds are not passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from service.artifact import tensor_proto
from service.graph.flat_graph import FlatGraph, constant_of, node_of
from service.graph.probes import MOST_LENGTH, SHORT
from service.graph.table_reads import TableRead

# Ops that say the shape of their input, or give each element the same number: their result holds no row and no id.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
# Ops whose elements are elements of their data inputs, whatever these are.
_MOVES = frozenset(
    {
        # The same elements; EnsureShape refuses requests by their sizes.
        *("Identity", "Snapshot", "StopGradient", "PreventGradient", "EnsureShape"),
        # The same elements, in a shape that is layout; Transpose and BroadcastTo show in each request.
        *("Reshape", "ExpandDims", "Squeeze", "Transpose", "Tile", "BroadcastTo"),
        # The elements at places that are layout: a constant among these is a size, beside which probes lie.
        *("GatherV2", "GatherNd", "Slice", "StridedSlice"),
        # The elements beside others, in each request.
        *("Pad", "PadV2", "Pack", "ConcatV2", "Fill"),
        # By a condition of layout, or one by which ids count before the gather.
        *("Select", "SelectV2"),
        # From one form of lists to another; a shape that cuts lists is a size.
        *("RaggedTensorToTensor", "RaggedTensorToSparse", "SparseFillEmptyRows", "SparseReshape"),
        # The distinct keys, and their places. Of rows, few have equal numbers.
        "Unique",
        # To parts and back, by layout or parts of keys.
        *("DynamicPartition", "DynamicStitch", "ParallelDynamicStitch"),
    }
)
# Ops that add rows up, whatever they hold, by segments and axes that are layout: the rows are their first input.
_SUMS = frozenset(
    {
        *("Sum", "Mean", "SegmentSum", "SegmentMean", "UnsortedSegmentSum"),
        *(f"SparseSegment{how}{end}" for how in ("Sum", "Mean", "SqrtN") for end in ("", "WithNumSegments")),
    }
)
# Numbers of the inputs by which an op may take rows; other ops that move elements may take rows by any input.
_ROW_INPUTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(_SUMS, (0,)),
    **dict.fromkeys(("RealDiv", "DivNoNan"), (0,)),
    **dict.fromkeys(("GatherV2", "GatherNd", "Slice", "StridedSlice", "Reshape", "Tile", "BroadcastTo"), (0,)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    "RaggedTensorToTensor": (1,),
    "Unique": (),
}
# Ops that decide by the numbers of their inputs, and give truth values.
_COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"})
_BOUNDS = _COMPARISONS | {"Maximum", "Minimum"}
_SCALES = frozenset({"Mul", "RealDiv", "DivNoNan"})
# Ops that make the bound of max_norm of the sums of squares of rows.
_OF_NORMS = _BOUNDS | _SCALES | {"Sqrt", "Rsqrt", "Select", "SelectV2", "Identity", "Reshape", "ExpandDims"}
# Ops that give many numbers the same result, so that a size that they change need not be near any constant.
_ROUNDS = frozenset(
    {
        *("Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "LeftShift", "RightShift"),
        *("Round", "Rint", "Floor", "Ceil", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
    }
)
# Ops that pass constants on as they are.
_SAYS = frozenset({"Const", "Identity", "Cast", "Reshape", "ExpandDims", "Pack", "Fill", "BroadcastTo"})
_TRUTHS = _COMPARISONS | {"LogicalAnd", "LogicalOr", "LogicalNot"}
# Ops by which ids may come to a gather where the manifest does not say that they are right: probes lie on both sides of
# each number that ids are compared with, and hold the keys of vocabularies.
_PROBED = (
    _MOVES
    | _TRUTHS
    | {"Where", "Maximum", "Minimum", "Cast", "AsString", "StringToHashBucketFast", "LookupTableFindV2"}
)


class Claimed(NamedTuple):
    """The part of a claim that is compared with the ops of a graph.

    keys: the placeholder of the feature's ids or keys. inputs: the placeholders of all inputs of the feature.
    is_described: the manifest describes the feature for this signature, so that its ids are known to be right.
    max_norm: of the lookup; the graph may compare norms of rows with this number alone.
    """

    keys: str
    inputs: Collection[str]
    is_described: bool
    max_norm: float | None


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
    if not _treats_rows_alike(flat, of_rows & behind, node_of(read.rows), of_rows, claimed):
        return False
    for name in behind - of_rows:
        if name in of_keys:
            if flat.nodes[name].op not in _MOVES or not _is_of_keys(flat, name, of_keys | of_rows):
                return False
        elif not _shows_in_layout(flat, name):
            return False
    if claimed.is_described:
        return True
    of_keys = _reached(flat, before, claimed.keys, _SHAPES)
    return all(flat.nodes[name].op in _PROBED and _is_of_keys(flat, name, of_keys) for name in of_keys - {claimed.keys})


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
    large = [size for size in found if SHORT < size <= MOST_LENGTH]
    return found | {size for a in large for b in large for size in (a + b, a - b) if size <= MOST_LENGTH}


def _treats_rows_alike(
    flat: FlatGraph, nodes: Collection[str], start: str, of_rows: Collection[str], claimed: Claimed
) -> bool:
    kinds, todo = {start: "rows"}, set(nodes) - {start}
    while todo:
        ready = [name for name in todo if all(g in kinds for g in map(node_of, flat.data_inputs(name)) if g in of_rows)]
        for name in ready:
            given = {p: kinds[node_of(g)] for p, g in enumerate(flat.data_inputs(name)) if node_of(g) in of_rows}
            if (kind := _kind(flat, name, given, claimed.max_norm)) is None:
                return False
            kinds[name] = kind
        if not ready:
            return False
        todo.difference_update(ready)
    return True


def _kind(flat: FlatGraph, name: str, given: Mapping[int, str], max_norm: float | None) -> str | None:
    """Returns what a node makes of rows: "rows", the "squares" of their numbers, or "norms"; None if nothing is known.

    given: number of an input -> what it holds, for those that hold something of rows.
    """
    op, inputs = flat.nodes[name].op, flat.data_inputs(name)
    of_rows = {place for place, kind in given.items() if kind == "rows"}
    others = [other for place, other in enumerate(inputs) if place not in given]
    if max_norm is not None and op in _SCALES:
        numbers = [_numbers(flat, other) for other in others]
        if any(found is not None and not {*found} <= {1.0, _single(max_norm)} for found in numbers):
            return None
    if len(of_rows) == len(given):
        if op == "Square" or (op == "Mul" and len(given) == 2 and inputs[0] == inputs[1]):
            return None if max_norm is None else "squares"
        if op == "MulNoNan":
            # A weight of 0 would hide a row with NaN.
            return "rows" if of_rows == {0} and not _is_weighted(flat, inputs[1]) else None
        if op == "Mul":
            return "rows" if len(given) == 1 else None
        return "rows" if op in _MOVES | _SUMS | _SCALES and of_rows <= {*_ROW_INPUTS.get(op, of_rows)} else None
    if of_rows:
        # Rows are scaled by what their norms give.
        allowed = {"Mul": {0, 1}, "RealDiv": {0}, "DivNoNan": {0}, "Select": {1, 2}, "SelectV2": {1, 2}}.get(op, set())
        return "rows" if "squares" not in given.values() and of_rows <= allowed else None
    if "squares" in given.values():
        axes = _numbers(flat, inputs[1]) if op == "Sum" else None
        return "norms" if axes is not None and 0 not in axes else None
    if op not in _OF_NORMS or (op in _BOUNDS and any(not _is_bound(flat, other, max_norm) for other in others)):
        return None
    return "norms"


def _is_bound(flat: FlatGraph, tensor: str, max_norm: float | None) -> bool:
    numbers = _numbers(flat, tensor)
    return numbers is not None and {*numbers} <= {0.0, _single(max_norm or 0)}


def _single(number: float) -> float:
    return float(np.float32(number))


def _is_weighted(flat: FlatGraph, tensor: str) -> bool:
    placeholders = (node for n in flat.ancestors([tensor]) if (node := flat.nodes[n]).op.startswith("Placeholder"))
    return any(node.attr["dtype"].type == tensor_proto.dtype_number("float32") for node in placeholders)


def _numbers(flat: FlatGraph, tensor: str) -> list[float] | None:
    """Returns the numbers of a constant; None if the tensor is no constant that can be read."""
    node = flat.nodes[node_of(tensor)]
    while node.op in ("Identity", "Cast"):
        node = flat.nodes[node_of(flat.data_inputs(node.name)[0])]
    if node.op != "Const" or node.attr["dtype"].type not in tensor_proto.NUMPY_DTYPES:
        return None
    numbers: list[float] = constant_of(node).reshape(-1).tolist()
    return numbers


def _is_of_keys(flat: FlatGraph, name: str, of_keys: Collection[str]) -> bool:
    """Says whether a node that takes keys takes no other numbers that the graph has computed of constants.

    Keys may be compared with constants, beside which probes lie, but not choose elements of constants.
    """
    inputs = [node_of(given) for given in flat.data_inputs(name)]
    if flat.nodes[name].op in ("GatherV2", "GatherNd"):
        return inputs[0] in of_keys
    if flat.nodes[name].op not in _BOUNDS:
        return True
    others = [given for given in inputs if given not in of_keys and not _depends(flat, given)]
    return all(flat.nodes[n].op in _SAYS for n in flat.ancestors([f"{given}:0" for given in others]))


def _shows_in_layout(flat: FlatGraph, name: str) -> bool:
    """Says whether what a node makes of layout or weights changes at no size that is far from all constants."""
    op = flat.nodes[name].op
    if not _depends(flat, name):
        return True
    if op in _ROUNDS:
        return False
    for numbers in (_numbers(flat, given) for given in flat.data_inputs(name)):
        if numbers is None:
            continue
        # Integers are sizes (layout_sizes). The square of a weight is of a power of 2.
        if any(isinstance(number, float) and abs(number) > (2 if op == "Pow" else 1) for number in numbers):
            return False
        if op in _SCALES and not {*numbers} <= {-1, 0, 1}:
            return False
    return True


def _depends(flat: FlatGraph, name: str) -> bool:
    return any(flat.nodes[n].op.startswith("Placeholder") for n in flat.ancestors([f"{name}:0"]))


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
