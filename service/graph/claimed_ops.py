"""Decides which tensors behind a gather may stand for a lookup, by the ops between the gather and the tensor.

Probe requests read only some of a table's rows, by some ids. So a tensor is compared with a lookup only if the ops on
its way treat all rows alike and all ids alike: rows are moved, weighted and added up, whatever numbers they hold, and
which ids count was decided before the gather. A clip, a ReLU or a bound on norms changes few rows of a table, perhaps
none of those that the probes read; a mask on ids changes few ids, and another input few requests.

What is layout (sizes and positions) or weights may be arithmetic that shows itself in few requests. Compared are only
sizes and weights themselves, and sums and differences of sizes, with no integers but the smallest: no lookup treats
other sizes apart, and the probes hold all small sizes together. Products, quotients and roots may only scale vectors,
because their thresholds may lie far from all constants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.artifact import tensor_proto
from service.artifact.manifest import Combiner
from service.graph.flat_graph import FlatGraph, constant_of, node_of, numbers_of, reached
from service.graph.table_reads import TableRead

# Ops that say the sizes of their input.
_SIZES = frozenset({"Shape", "ShapeN", "Size"})
# Ops whose result holds no row and no id: those, and ops that give each element the same number.
_SHAPES = _SIZES | {"Rank", "ZerosLike", "OnesLike"}
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
# Most comparisons of sizes behind one tensor: trial requests hold each case of two, but not of more.
_MOST_COMPARED = 2
# Ops that treat a zero apart.
_POLES = frozenset({"RealDiv", "DivNoNan", "MulNoNan", "Reciprocal", "Rsqrt", "Pow"})
# Numbers of the inputs by which an op may take rows; other ops that move elements may take rows by any input.
_ROW_INPUTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(_SUMS, (0,)),
    **dict.fromkeys(("RealDiv", "DivNoNan"), (0,)),
    **dict.fromkeys(("GatherV2", "GatherNd", "Slice", "StridedSlice", "Reshape", "Tile", "BroadcastTo"), (0,)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    "RaggedTensorToTensor": (1,),
    "Unique": (),
}
# Integers with which a graph may compare sizes, or make sizes that it compares.
_SMALL = frozenset({-1, 0, 1, 2})
# Ops that decide by the numbers of their inputs, and give truth values.
_COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"})
_BOUNDS = _COMPARISONS | {"Maximum", "Minimum"}
# Further ops that decide by numbers: which is the largest of several, and which are not 0.
_DECIDES = _BOUNDS | {"Max", "Min", "Where"}
_SCALES = frozenset({"Mul", "RealDiv", "DivNoNan"})
# What rows become on their way, in this order.
_STAGES = ("rows", "sums", "means")
# Ops that make the bound of max_norm of the sums of squares of rows.
_OF_NORMS = _BOUNDS | _SCALES | {"Sqrt", "Rsqrt", "Select", "SelectV2", "Identity", "Reshape", "ExpandDims"}
_LOGICAL = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})
# Ops of layout and weights whose results change only beside the numbers that the graph compares with: what they decide
# shows in requests of these sizes and weights.
_PLAIN = (
    _SHAPES
    | _MOVES
    | _BOUNDS
    | _LOGICAL
    | {
        *("Placeholder", "PlaceholderWithDefault", "Const", "Cast", "Where", "Range", "Cumsum", "BroadcastArgs"),
        *("Add", "AddV2", "AddN", "Sub", "Sum", "Max", "Min", "All", "Any", "SegmentSum", "UnsortedSegmentSum"),
        *("RaggedRange", "RaggedGather"),
    }
)
# Ops whose results may scale vectors and weights or be shapes, but decide nothing.
_SCALING = _SCALES | {"MulNoNan", "Neg", "Pow", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Prod", "Mean"}
# DataType numbers that hold each size, so that a Cast to them keeps sizes apart.
_FLOATS = frozenset({tensor_proto.dtype_number(name) for name in ("float32", "float64")})
_NARROW = frozenset({tensor_proto.dtype_number(name) for name in ("float16", "bfloat16")})
_BOOL = tensor_proto.dtype_number("bool")
_WIDE = _FLOATS | {_BOOL, *(tensor_proto.dtype_number(name) for name in ("int32", "int64"))}
# Ops that read elements of their first input at the positions that another input has, and ops that add a constant to a
# size.
_PLACES = frozenset({"GatherV2", "GatherNd", "Slice", "StridedSlice"})
_SHIFTS = frozenset({"Add", "AddV2", "AddN", "Sub"})
# Ops that make as many elements as a number says, and none for a negative number.
_STEPS = frozenset({"Range", "Pad", "PadV2", "RaggedRange"})
# Ops that add elements up, of which there are as many as a size says.
_COUNTS = frozenset({"Sum", "Cumsum", "SegmentSum", "UnsortedSegmentSum"})
# Ops whose results may have other sizes than their inputs have, such as products and sums of these.
_RESIZES = frozenset(
    {
        *("Tile", "Range", "Reshape", "ConcatV2", "Pad", "PadV2"),
        *("RaggedRange", "RaggedGather", "RaggedTensorToTensor"),
        *("SparseFillEmptyRows", "SparseReshape", "Slice", "StridedSlice"),
    }
)
# Ops that pass constants on as they are.
_SAYS = frozenset({"Const", "Identity", "Cast", "Reshape", "ExpandDims", "Pack", "Fill", "BroadcastTo"})
# Further ops that make no number of constants that the constants do not hold, or that hold no number at all.
_SAYS_ALL = _SAYS | {
    *("ConcatV2", "Slice", "StridedSlice", "GatherV2", "Squeeze", "Transpose", "Tile", "ZerosLike", "OnesLike"),
    *("NoOp", "HashTableV2", "LookupTableSizeV2"),
}
_TRUTHS = _COMPARISONS | _LOGICAL
# Ops whose result at a place is of several elements at this place.
_CHOICES = _BOUNDS | _LOGICAL | {"Select", "SelectV2"}
# Ops that pass elements on as they are, in another shape or only some of them.
_PASSES = frozenset({"Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Slice", "StridedSlice"})
# Ops that give keys the numbers of rows.
_NUMBERS_KEYS = {"StringToHashBucketFast", "LookupTableFindV2"}
# Ops by which ids may come to a gather where the manifest does not say that they are right: probes lie on both sides of
# each number that ids are compared with, and hold the keys of vocabularies.
_PROBED = _MOVES | _TRUTHS | _NUMBERS_KEYS | {"Where", "Maximum", "Minimum", "Cast", "AsString"}


class Claimed(NamedTuple):
    """The part of a claim that is compared with the ops of a graph.

    keys: the placeholder of the feature's ids or keys. inputs: the placeholders of all inputs of the feature.
    beside: the placeholders, by name of the input, of others that have one element for each row of a request; the core
      runs the graph's own ops for requests in which one of them has another size.
    is_described: the manifest describes the feature for this signature, so that its ids are known to be right.
    combiner: of the lookup; None if each row stands alone.
    max_norm: of the lookup; the graph may compare norms of rows with this number alone.
    weights: the placeholder of the feature's weights, if it has any.
    """

    keys: str
    inputs: Collection[str]
    beside: Mapping[str, str]
    is_described: bool
    combiner: Combiner | None
    max_norm: float | None
    weights: frozenset[str] = frozenset()


class ClaimedOps:
    """The judge of a flat graph's ops. Make it when no node of the graph changes any more."""

    def __init__(self, flat: FlatGraph) -> None:
        self._flat = flat
        # The nodes that are no constants: they depend on a request.
        self._varying = flat.depending(is_placeholder)

    def alike(self, candidates: Iterable[str], read: TableRead, claimed: Claimed) -> list[str]:
        """Returns the tensors behind a gather that may stand for a lookup: the ops between the feature's inputs and the
        tensor treat all rows and all ids alike.

        Args:
          candidates: tensors of which each depends on the one before it, so that none follows the first that is not
            returned.
        """
        flat, found = self._flat, list[str]()
        before = flat.ancestors([read.ids])
        if any(self._takes_others(name, claimed) or self._hides(name) for name in before):
            return []
        of_others = self._of_others(before, set(), claimed)
        of_keys = reached(flat, before, {claimed.keys}, _SHAPES)
        if not all(self.cuts_few(name, of_keys) for name in of_keys):
            return []
        if of_others is None or not all(self.shows_in_layout(name, of_keys) for name in before - of_keys):
            return []
        if not claimed.is_described:
            own = of_keys - {claimed.keys}
            if any(not self._is_probed(name, of_keys) for name in own):
                return []
        # A condition that probes do not show may choose ids before the gather, which the manifest describes; not rows.
        decided = {name for name in before if _is_truth(flat.nodes[name])}
        truths = decided & of_keys
        unshown = {name for name in truths if not self._is_shown(name, of_keys, claimed)}
        unshown = reached(flat, before, unshown, _SHAPES | {"Where"})
        # Which ids count before the gather is part of the claim; positions and counts of these ids are layout.
        of_keys = reached(flat, before, {claimed.keys}, _SHAPES, decided)
        of_rows = {node_of(read.rows)}
        kinds = {node_of(read.rows): "rows"}
        seen = set(before)
        for tensor in candidates:
            new = set()
            for name in flat.walk([tensor], seen, cut=frozenset({read.rows})):
                if self._takes_others(name, claimed) or self._hides(name):
                    return found
                if any(node_of(given) in unshown for given in flat.data_inputs(name)):
                    return found
                new.add(name)
            of_others = self._of_others(new, of_others, claimed)
            of_rows = reached(flat, new, of_rows, _SHAPES)
            of_keys = reached(flat, new, of_keys, _SHAPES, decided)
            moved = of_rows | of_keys
            if not all(self._are_plain(self._cuts(n), moved) and self.cuts_few(n, moved) for n in new & moved):
                return found
            if of_others is None or not _treats_rows_alike(flat, of_rows & new, kinds, of_rows, claimed):
                return found
            for name in new - of_rows:
                if name in of_keys:
                    if flat.nodes[name].op not in _MOVES or not self._is_of_keys(name, of_keys | of_rows):
                        return found
                elif not self.shows_in_layout(name, of_keys | of_rows):
                    return found
            found.append(tensor)
        return found

    def _takes_others(self, name: str, claimed: Claimed) -> bool:
        """Says whether a node takes elements of inputs of other features, as far as the node itself shows it."""
        node = self._flat.nodes[name]
        if is_placeholder(node):
            return name not in claimed.inputs and name not in claimed.beside.values()
        if not claimed.beside or node.op in _SHAPES or node.op == "Identity":
            return False
        return any(node_of(given) in claimed.beside.values() for given in self._flat.data_inputs(name))

    def _of_others(self, among: Collection[str], known: Collection[str], claimed: Claimed) -> set[str] | None:
        """Returns the nodes that hold elements of inputs of other features; None if more than their number may count.

        known: those that were found before among other nodes.
        """
        found = reached(self._flat, among, {*known, *(n for n in claimed.beside.values() if n in among)}, _SHAPES)
        nodes = map(self._flat.nodes.__getitem__, found)
        return found if all(is_placeholder(node) or node.op == "Identity" for node in nodes) else None

    def _hides(self, name: str) -> bool:
        """Says whether a node gives a number beside which no probe lies: of distinct keys, or computed of constants."""
        node = self._flat.nodes[name]
        if name in self._varying:
            return self.counts_distinct(name) or self.takes_places(name)
        if node.op == "Cast" and not _keeps_numbers(node):
            numbers = numbers_of(self._flat, f"{name}:0")
            return numbers is None or not {*numbers} <= {-1, 0, 1}
        return node.op not in _SAYS_ALL

    def _is_shown(self, truth: str, of_keys: Collection[str], claimed: Claimed) -> bool:
        """Says whether probes show for which keys a condition before the gather holds."""
        path = self._flat.ancestors([f"{truth}:0"]) & {*of_keys} - {claimed.keys}
        return all(self._is_probed(name, of_keys) for name in path)

    def _is_probed(self, name: str, of_keys: Collection[str]) -> bool:
        """Says whether probes show what a node before the gather makes of ids or keys."""
        flat = self._flat
        node = flat.nodes[name]
        if node.op == "Cast" and not _keeps_integers(node):
            # Few ids do not fit the other type. Those that a vocabulary gives are few.
            before = flat.ancestors(flat.data_inputs(name))
            return any(flat.nodes[one].op in _NUMBERS_KEYS for one in before & {*of_keys})
        if node.op in _CHOICES and not all(node_of(i) in of_keys or self._is_spread(i) for i in flat.data_inputs(name)):
            # The op chooses by places or sizes, too, so it may treat a key apart in requests that no probe holds.
            return False
        return node.op in _PROBED and self._is_of_keys(name, of_keys)

    def _is_spread(self, tensor: str) -> bool:
        """Says whether all elements of a tensor are one constant, in whatever shape."""
        node, inputs = self._flat.nodes[node_of(tensor)], self._flat.data_inputs(node_of(tensor))
        if node.op in ("Fill", "BroadcastTo"):
            return node_of(inputs[1 if node.op == "Fill" else 0]) not in self._varying
        return node.op in ("ZerosLike", "OnesLike") or node.name not in self._varying

    def _is_of_keys(self, name: str, of_keys: Collection[str]) -> bool:
        """Says whether a node that takes keys takes no other numbers that the graph has computed of constants.

        Keys may be compared with constants, beside which probes lie, but not choose elements of constants.
        """
        flat = self._flat
        inputs = [node_of(given) for given in flat.data_inputs(name)]
        if flat.nodes[name].op in ("GatherV2", "GatherNd"):
            return inputs[0] in of_keys
        if flat.nodes[name].op not in _BOUNDS:
            return True
        others = [given for given in inputs if given not in of_keys and given not in self._varying]
        return all(flat.nodes[n].op in _SAYS for n in flat.ancestors([f"{given}:0" for given in others]))

    def counts_distinct(self, name: str) -> bool:
        """Says whether a node counts distinct keys. Requests of any size may have any number of them."""
        if self._flat.nodes[name].op not in _SIZES:
            return False
        todo = self._flat.data_inputs(name)
        seen = {*todo}
        while todo:
            tensor = todo.pop()
            node = self._flat.nodes[node_of(tensor)]
            if node.op == "Unique" and tensor.endswith(":0"):
                return True
            inputs = self._flat.data_inputs(node.name)
            if "Segment" in node.op or node.op == "GatherV2":
                # As many as there are segments or places.
                inputs = inputs[1:]
            new = set(inputs) - seen if node.op not in _SIZES | {"Rank"} else set()
            seen |= new
            todo += new
        return False

    def takes_places(self, name: str) -> bool:
        """Says whether a node takes the places of keys among the distinct keys as numbers, by which it may decide.

        The largest place says how many keys are distinct, and requests of any size may have any number of them. To
        choose elements by places hides nothing.
        """
        op = self._flat.nodes[name].op
        places = {at for at, given in enumerate(self._flat.data_inputs(name)) if self._holds_places(given)}
        if op in _SHAPES or op in ("GatherV2", "GatherNd"):
            return False
        return not places <= ({0} if op in _PASSES else {1} if op.startswith("SparseSegment") else set())

    def _holds_places(self, tensor: str) -> bool:
        node = self._flat.nodes[node_of(tensor)]
        if node.op == "Unique":
            return tensor.endswith(":1")
        if node.op not in _PASSES | {"GatherV2", "GatherNd"}:
            return False
        return self._holds_places(self._flat.data_inputs(node.name)[0])

    def decides(self, name: str, is_size: Callable[[str], bool]) -> bool:
        """Says whether a node compares sizes, or treats a zero apart among numbers that are made of sizes alone.

        Args:
          is_size: says whether a tensor holds sizes or positions, or numbers that are made of these.
        """
        node = self._flat.nodes[name]
        if node.op not in _DECIDES | _LOGICAL | _POLES and not (node.op == "Cast" and _is_truth(node)):
            return False
        varying = [given for given in self._flat.data_inputs(name) if node_of(given) in self._varying]
        some = map(is_size, varying)
        return bool(varying) and (all(some) if node.op in _POLES else any(some))

    def size_decisions(self, tensor: str, read: TableRead, claimed: Claimed) -> list[str]:
        """Returns the nodes that decide by sizes on the way from a feature's inputs to a tensor."""
        flat = self._flat
        between = flat.ancestors([tensor], cut=frozenset({read.rows})) | flat.ancestors([read.ids])
        values = reached(flat, between, {claimed.keys, node_of(read.rows), *claimed.weights}, _SHAPES)
        return [name for name in between if self.decides(name, lambda given: node_of(given) not in values)]

    def are_few(self, decisions: Iterable[str]) -> bool:
        """Says whether so few of these nodes compare sizes that the trial requests hold each case of them."""
        inputs = [self._flat.data_inputs(n) for n in decisions if self._flat.nodes[n].op in _COMPARISONS]
        # A mask compares all places with the length of a row.
        return sum(not any(map(self._is_range, given)) for given in inputs) <= _MOST_COMPARED

    def _cuts(self, name: str) -> list[str]:
        """Returns the inputs of a node that say which elements of its other inputs are kept."""
        op, inputs = self._flat.nodes[name].op, self._flat.data_inputs(name)
        return inputs[1:] if op in _PLACES else inputs[:1] if op == "RaggedTensorToTensor" else []

    def shows_in_layout(self, name: str, keys: Collection[str]) -> bool:
        """Says whether a node's result changes at no size or weight that is far from all constants.

        Args:
          keys: nodes of keys, of which the caller knows more.
        """
        flat = self._flat
        node, inputs = flat.nodes[name], flat.data_inputs(name)
        if name not in self._varying:
            return True
        if node.op not in _PLAIN | _SCALING | _SUMS:
            return False
        if node.op == "Cast":
            # Narrow types hold few sizes, and a whole number stands for many weights.
            source, to = node.attr["SrcT"].type, node.attr["DstT"].type
            if to not in _WIDE or (source in _FLOATS and to not in _FLOATS):
                return False
            if _is_truth(node) and not self._decides_by_few(inputs, keys):
                return False
        if node.op in _PLACES:
            # Numbers of a constant, chosen by a size, may be any.
            is_known = node_of(inputs[0]) in self._varying and self._are_plain(inputs[1:], keys)
            return is_known and self.cuts_few(name, keys)
        if node.op in _STEPS and not self._names_few(inputs, keys):
            return False
        if node.op in _POLES and not _is_weighted(flat, f"{name}:0"):
            # The numerator may be any constant, such as that of a reciprocal.
            if not self._decides_by_few([given for given in inputs if node_of(given) in self._varying], keys):
                return False
        if node.op in _DECIDES and not self._decides_by_few(inputs, keys):
            return False
        if node.op in _BOUNDS and not self._compares_one_size(inputs, keys):
            return False
        for numbers in (numbers_of(flat, given) for given in inputs):
            if numbers is None:
                continue
            # Integers are sizes (layout_sizes). The square of a weight is of a power of 2.
            if any(isinstance(number, float) and abs(number) > (2 if node.op == "Pow" else 1) for number in numbers):
                return False
            if node.op in _SCALES and not {*numbers} <= {-1, 0, 1}:
                return False
        return True

    def _compares_one_size(self, inputs: Sequence[str], keys: Collection[str]) -> bool:
        """Says whether a comparison is one of a size with one number or one other size, or of places with sizes.

        Row lengths that are compared with each other, or with several numbers, may have any order: no probe has it.
        """
        flat = self._flat
        varying = [given for given in inputs if node_of(given) in self._varying]
        numbers = [numbers_of(flat, given) for given in inputs if given not in varying]
        if any(len({*some}) > 1 for some in numbers if some is not None):
            return False
        if len(varying) < 2 or any(self._is_range(given) or node_of(given) in keys for given in varying):
            return True
        return self._are_plain(varying, keys, most_sizes=0)

    def _decides_by_few(self, tensors: Sequence[str], keys: Collection[str]) -> bool:
        return self._are_plain(tensors, keys) and self._names_few(tensors, keys)

    def cuts_few(self, name: str, keys: Collection[str]) -> bool:
        """Says whether a node that takes elements by their places names only places near an end.

        How many elements are left is a decision by a size, too. Of the sizes of a tensor, any may be taken.
        """
        node, inputs = self._flat.nodes[name], self._flat.data_inputs(name)
        if node.op not in _PLACES or self._flat.nodes[node_of(inputs[0])].op in _SIZES:
            return True
        return self._names_few(inputs[1:], keys)

    def _names_few(self, tensors: Iterable[str], keys: Collection[str]) -> bool:
        """Says whether the numbers that make sizes, before an op decides by these, are few and small.

        A lookup treats no size apart but 0 and 1. Trial requests hold all small sizes together, but of two larger ones
        only some pairs. Sums of weights are any numbers, so that a request may have none beside a fraction.
        """
        flat = self._flat
        todo = [node_of(tensor) for tensor in tensors]
        seen, fractions = {*todo}, False
        for name in todo:
            op, inputs = flat.nodes[name].op, flat.data_inputs(name)
            if name in keys:
                continue
            if name not in self._varying:
                numbers = numbers_of(flat, f"{name}:0")
                if numbers is None and op not in _SAYS_ALL:
                    return False
                inputs = inputs if numbers is None else []
                fractions = fractions or any(0 < abs(number) < 1 for number in numbers or ())
                if any(not isinstance(number, float) and number not in _SMALL for number in numbers or ()):
                    return False
            elif op == "Reshape" or (op in _PLACES and flat.nodes[node_of(inputs[0])].op in _SIZES):
                # A shape changes no size, and the sizes of a tensor are few.
                inputs = inputs[:1]
            new = {*map(node_of, inputs)} - seen
            seen |= new
            todo += new
        return not fractions or not any(flat.nodes[name].op in _COUNTS for name in seen)

    def _is_range(self, tensor: str) -> bool:
        node = self._flat.nodes[node_of(tensor)]
        return bool(node.op == "Range") or (node.op in _PASSES and self._is_range(self._flat.data_inputs(node.name)[0]))

    def _are_plain(self, tensors: Iterable[str], keys: Collection[str], *, most_sizes: int = 1) -> bool:
        """Says whether tensors hold sizes or weights, or sizes less one constant or one other size.

        Args:
          most_sizes: 0 for tensors that hold no size less another size.
        """
        flat = self._flat
        known: dict[str, tuple[int, int] | None] = {}

        def shifts(name: str) -> tuple[int, int] | None:
            """Counts constants that were added, and sizes that were subtracted; None if a node is not plain."""
            if name not in known:
                known[name] = counted(name)
            return known[name]

        def counted(name: str) -> tuple[int, int] | None:
            op, inputs = flat.nodes[name].op, flat.data_inputs(name)
            if op in _SIZES | _COUNTS and name in self._varying:
                sizes = self._sizes(inputs[:1], is_one=op == "Size")
                if sizes is None or (
                    op in _COUNTS and not self._adds_up_to_size(inputs[0], keys, of_row="Segment" in op)
                ):
                    return None
                inputs = [*sizes, *(inputs if op in _COUNTS else ())]
            elif name in keys or op in _SHAPES:
                return 0, 0
            elif op not in _PLAIN:
                return None
            # A shape changes no element.
            found = [shifts(node_of(given)) for given in (inputs[:1] if op == "Reshape" else inputs)]
            if None in found:
                return None
            constants, sizes = (max(column) for column in zip((0, 0), *(one for one in found if one), strict=True))
            if op in _SHIFTS and name in self._varying:
                added = [numbers_of(flat, given) for given in inputs if node_of(given) not in self._varying]
                if any(one is None or any(isinstance(number, float) and number for number in one) for one in added):
                    return None
                if not added and op != "Sub":
                    # A size beside itself reaches a constant at the half of it.
                    return None
                constants += any(any(one) for one in added if one)
                sizes += not added
            return None if constants > 1 or sizes > most_sizes else (constants, sizes)

        return all(shifts(node_of(tensor)) is not None for tensor in tensors)

    def _adds_up_to_size(self, tensor: str, keys: Collection[str], *, of_row: bool) -> bool:
        """Says whether the sum of a tensor's elements is a number of elements, or the sum of a row's weights.

        The sum of places, for one, grows with the square of a size, so that its thresholds lie far from all constants.
        """
        flat = self._flat
        node, inputs = flat.nodes[node_of(tensor)], flat.data_inputs(node_of(tensor))
        if node.name in keys or _is_truth(node) or node.op in ("OnesLike", "ZerosLike"):
            return True
        if node.op == "Cast" and node.attr["SrcT"].type == _BOOL:
            return True
        if node.op in _PASSES | {"GatherV2", "GatherNd", "Fill", "BroadcastTo"} and node.name in self._varying:
            return self._adds_up_to_size(inputs[node.op == "Fill"], keys, of_row=of_row)
        if node.op == "Sub":
            # The lengths of rows, which are differences of row splits.
            parts = [flat.nodes[node_of(given)] for given in inputs]
            of = {flat.data_inputs(part.name)[0] for part in parts if part.op in ("Slice", "StridedSlice")}
            return len(of) == 1 and all(part.op in ("Slice", "StridedSlice") for part in parts)
        if is_placeholder(node):
            return of_row and bool(node.attr["dtype"].type in _FLOATS)
        numbers = numbers_of(flat, tensor)
        return numbers is not None and {*numbers} <= {-1, 0, 1}

    def _sizes(self, tensors: Sequence[str], *, is_one: bool) -> list[str] | None:
        """Returns the tensors whose numbers are sizes of the given ones, besides sizes of a request's inputs.

        Returns None if a size may be a product or a sum of others, so that probes beside constants do not show it.

        Args:
          is_one: the reader multiplies the sizes of a tensor, which may then have one dimension only.
        """
        flat, found = self._flat, list[str]()
        todo, seen = [*tensors], {*tensors}
        if is_one and not all(map(self._is_vector, tensors)):
            return None
        for tensor in todo:
            op, inputs = flat.nodes[node_of(tensor)].op, flat.data_inputs(node_of(tensor))
            if op in _SIZES or op == "Rank":
                continue
            if op == "Where":
                # As many as there are true elements.
                found += inputs
                continue
            if op == "Range" and (numbers_of(flat, inputs[0]), numbers_of(flat, inputs[2])) == ([0], [1]):
                found.append(inputs[1])
                continue
            if op in ("Fill", "BroadcastTo"):
                found.append(inputs[0 if op == "Fill" else 1])
                continue
            if op == "Reshape" and numbers_of(flat, inputs[1]) == [-1] and self._is_vector(inputs[0]):
                inputs = inputs[:1]
            elif op in ("Slice", "StridedSlice") and self._cuts_few(op, inputs):
                inputs = inputs[:1]
            elif "Segment" in op:
                # As many as the largest number of a segment says.
                found += inputs[1:]
                inputs = inputs[:1]
            elif op == "GatherV2":
                # As many as there are places.
                inputs = inputs[1:2]
            elif op in _RESIZES:
                return None
            todo += [given for given in dict.fromkeys(inputs) if given not in seen]
            seen.update(inputs)
        return found

    def _cuts_few(self, op: str, inputs: Sequence[str]) -> bool:
        """Says whether a slice has one element less than its input at each end at most, or ends at a constant size."""
        begins, ends, *strides = ([*(numbers_of(self._flat, given) or [-2])] for given in inputs[1:])
        least = min(begins if op == "Slice" else [*ends, *begins])
        return max(begins) <= 1 and least >= -1 and strides in ([], [[1] * len(begins)])

    def _is_vector(self, tensor: str) -> bool:
        node = self._flat.nodes[node_of(tensor)]
        if is_placeholder(node):
            shape = node.attr["shape"].shape
            return bool(len(shape.dim) == 1)
        inputs = self._flat.data_inputs(node.name)
        if node.op == "StridedSlice" and not (node.attr["new_axis_mask"].i or node.attr["shrink_axis_mask"].i):
            inputs = inputs[:1]
        elif node.op not in _SHIFTS | {"Identity", "Cast", "StopGradient"}:
            return bool(node.op == "Range")
        return all(map(self._is_vector, inputs))


def is_placeholder(node: Any) -> bool:
    return bool(node.op.startswith("Placeholder"))


def sized_by(flat: FlatGraph, tensor: str, read: TableRead, claimed: Claimed) -> tuple[str, ...]:
    """Returns the inputs of other features whose sizes are used on the way to a tensor that stands for a lookup."""
    nodes = flat.ancestors([tensor], cut=frozenset({read.rows})) | flat.ancestors([read.ids])
    return tuple(sorted(name for name, placeholder in claimed.beside.items() if placeholder in nodes))


def layout_sizes(flat: FlatGraph, tensor: str, read: TableRead, claimed: Claimed) -> set[int]:
    """Returns the constants with which a graph may compare sizes on the way to a tensor, without their signs."""
    between = flat.ancestors([tensor], cut=frozenset({read.rows})) | flat.ancestors([read.ids])
    of_keys = reached(flat, between, {claimed.keys}, _SHAPES)
    found: set[int] = set()
    for name in between:
        inputs = flat.data_inputs(name)
        if name in of_keys:
            # Keys at some places only.
            inputs = inputs[1:] if flat.nodes[name].op in _PLACES else []
        for given in inputs:
            constant = flat.nodes[node_of(given)]
            if constant.op == "Const" and constant.attr["dtype"].type in tensor_proto.NUMPY_DTYPES:
                numbers = constant_of(constant)
                found.update(numbers.reshape(-1).tolist() if numbers.dtype.kind in "iu" else ())
    return {abs(number) for number in found}


def _treats_rows_alike(
    flat: FlatGraph, nodes: Collection[str], kinds: dict[str, str], of_rows: Collection[str], claimed: Claimed
) -> bool:
    todo = set(nodes) - kinds.keys()
    while todo:
        ready = [name for name in todo if all(g in kinds for g in map(node_of, flat.data_inputs(name)) if g in of_rows)]
        for name in ready:
            given = {p: kinds[node_of(g)] for p, g in enumerate(flat.data_inputs(name)) if node_of(g) in of_rows}
            if (kind := _kind(flat, name, given, claimed)) is None:
                return False
            kinds[name] = kind
        if not ready:
            return False
        todo.difference_update(ready)
    return True


def _kind(flat: FlatGraph, name: str, given: Mapping[int, str], claimed: Claimed) -> str | None:
    """Returns what a node makes of rows: "rows", the "squares" of their numbers, or "norms"; None if nothing is known.

    Rows that have been added up are "sums", and sums that have been divided "means": a further sum of one, or a factor
    of 1, changes denormal numbers and the signs of zeros, which few rows have.

    given: number of an input -> what it holds, for those that hold something of rows.
    """
    op, inputs, max_norm = flat.nodes[name].op, flat.data_inputs(name), claimed.max_norm
    of_rows = {place for place, kind in given.items() if kind in _STAGES}
    others = [other for place, other in enumerate(inputs) if place not in given]
    if max_norm is not None and op in _SCALES:
        numbers = [numbers_of(flat, other) for other in others]
        if any(found is not None and not {*found} <= {1.0, _single(max_norm)} for found in numbers):
            return None
    if len(of_rows) == len(given):
        stage = max(given.values(), key=_STAGES.index)
        if op == "Square" or (op == "Mul" and len(given) == 2 and inputs[0] == inputs[1]):
            return None if max_norm is None or stage != "rows" else "squares"
        if op in _MOVES:
            # Rows of two inputs are in two orders, and few requests may show by what they are chosen.
            return stage if len(of_rows) == 1 and of_rows <= {*_ROW_INPUTS.get(op, of_rows)} else None
        if op == "MulNoNan":
            # A weight of 0 would hide a row with NaN.
            may_scale = of_rows == {0} and not _is_weighted(flat, inputs[1])
        elif op == "Mul":
            may_scale = len(given) == 1
        else:
            may_scale = op in _SUMS | _SCALES and of_rows <= {*_ROW_INPUTS.get(op, of_rows)}
        return _next_stage(op, stage, claimed) if may_scale else None
    if of_rows:
        # Rows are scaled by what their norms give.
        allowed = {"Mul": {0, 1}, "RealDiv": {0}, "DivNoNan": {0}, "Select": {1, 2}, "SelectV2": {1, 2}}.get(op, set())
        return "rows" if {*given.values()} <= {"rows", "norms"} and of_rows <= allowed else None
    if "squares" in given.values():
        axes = numbers_of(flat, inputs[1]) if op == "Sum" else None
        return "norms" if axes is not None and 0 not in axes else None
    if op not in _OF_NORMS or (op in _BOUNDS and any(not _is_bound(flat, other, max_norm) for other in others)):
        return None
    return "norms"


def _next_stage(op: str, stage: str, claimed: Claimed) -> str | None:
    """Returns what a sum or a factor makes of rows; None if the lookup has no such step after the steps before."""
    if claimed.combiner is None:
        return stage if claimed.max_norm is not None and op in _SCALES else None
    if op in _SUMS:
        is_sum = op in ("Sum", "SegmentSum", "UnsortedSegmentSum") or op.startswith("SparseSegmentSum")
        return ("sums" if is_sum else "means") if stage == "rows" else None
    if stage == "rows":
        return stage
    return "means" if stage == "sums" and claimed.combiner != "sum" else None


def _is_bound(flat: FlatGraph, tensor: str, max_norm: float | None) -> bool:
    numbers = numbers_of(flat, tensor)
    return numbers is not None and {*numbers} <= {0.0, _single(max_norm or 0)}


def _is_truth(node: Any) -> bool:
    """Says whether a node makes truth values, of which a Cast makes those that Equal makes with 0."""
    return node.op in _TRUTHS or (node.op == "Cast" and node.attr["DstT"].type == _BOOL)


def _keeps_integers(cast: Any) -> bool:
    """Says whether a Cast keeps integers apart, or makes truth values, which differ at 0 alone."""
    source, to = (tensor_proto.NUMPY_DTYPES.get(cast.attr[name].type) for name in ("SrcT", "DstT"))
    if source is None or to is None:
        return False
    is_whole = source.kind in "iu" and to.kind in "iu"
    return "b" in (source.kind, to.kind) or (is_whole and np.can_cast(source, to))


def _keeps_numbers(cast: Any) -> bool:
    return _keeps_integers(cast) or (cast.attr["SrcT"].type in _NARROW | _FLOATS and cast.attr["DstT"].type in _FLOATS)


def _single(number: float) -> float:
    return float(np.float32(number))


def _is_weighted(flat: FlatGraph, tensor: str) -> bool:
    placeholders = (node for n in flat.ancestors([tensor]) if is_placeholder(node := flat.nodes[n]))
    return any(node.attr["dtype"].type == tensor_proto.dtype_number("float32") for node in placeholders)
