"""The part of a graph between keys and row numbers: the forms of its ops, what is known of its values, its policies.

Lists the ops that may lie between a signature's inputs and the vectors of a lookup, and says what each op does.

The reader (reading.py) describes a lookup only if it knows every op of the lookup. An op that is not in this table, or
that acts on a kind of tensor that its row does not name, ends the description: TensorFlow then computes what follows.

Kinds of tensors, by what their elements depend on:
  C  constants of the graph.
  L  layout: row splits, sizes and positions, but no key, weight or vector.
  K  keys: each element is a function of one key (or id) of the feature's input, the same function for all elements.
  W  the weights of the feature's ids.
  V  vectors: rows of the table, or sums of rows that are multiplied by weights.
  Q  squares of the numbers of vectors.
  N  the vectors' norms: sums of squares, and functions of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from service.artifact.manifest import BadIdPolicy
from service.graph.flat_graph import FlatGraph, node_of
from service.types import Array

# What an op does with the elements of its data inputs:
#   same       passes its input on.
#   arranged   keeps the elements and their order, in another shape.
#   moved      its elements are elements of its data inputs; the other inputs only say which ones.
#   sized      says the shape of its input.
#   constant   gives each element of its input the same number.
#   mapped     computes each element from one element of each input.
#   positions  returns the places of the elements that are true.
#   distinct   output 0 holds the distinct elements; output 1 says where each element of the input is among them.
#   filled     SparseFillEmptyRows: output 1 holds the data and a default for each empty row; the others are layout.
#   sparse     RaggedTensorToSparse: output 1 holds the data; the others are layout.
#   parted     DynamicPartition: distributes the data by part numbers, which are functions of the keys.
#   stitched   ParallelDynamicStitch: puts the data of parts together.
#   reduced    adds up elements, or finds the largest; the inputs other than the data say which ones.
#   laid_out   computes layout from layout.
Rule = Literal[
    "same",
    "arranged",
    "moved",
    "sized",
    "constant",
    "mapped",
    "positions",
    "distinct",
    "filled",
    "sparse",
    "parted",
    "stitched",
    "reduced",
    "laid_out",
]


@dataclass(frozen=True, slots=True)
class Form:
    """A row of the table: what ops do.

    on: the kinds of data that the op may act on, besides C and L; the reader knows those of parted and stitched itself.
    data: numbers of the inputs that hold the data; (): all inputs, without the `tail` last ones.
    """

    rule: Rule
    on: str = ""
    data: tuple[int, ...] = (0,)
    tail: int = 0

    def data_of(self, inputs: list[str]) -> list[str]:
        """Returns the inputs of a node that hold its data."""
        return [inputs[i] for i in self.data] if self.data else inputs[: len(inputs) - self.tail]


_ANY = "KWVQN"
_COMPARED = "KWN"

_FORMS: tuple[tuple[Form, str], ...] = (
    (Form("same", _ANY), "Identity Snapshot StopGradient PreventGradient"),
    (Form("arranged", _ANY), "Reshape ExpandDims Squeeze"),
    (Form("moved", _ANY), "GatherV2 GatherNd Slice StridedSlice"),
    (Form("moved", "WVN"), "Tile BroadcastTo"),
    # The elements that are added are zeros, or a constant.
    (Form("moved", "WV"), "Pad PadV2"),
    (Form("moved", "", (1,)), "Fill"),
    (Form("moved", "", ()), "Pack"),
    (Form("moved", "", (), tail=1), "ConcatV2"),
    (Form("sized", _ANY), "Shape Size Rank"),
    (Form("constant", _ANY), "ZerosLike OnesLike"),
    (Form("positions", "KW"), "Where"),
    (Form("distinct", "K"), "Unique"),
    (Form("filled", "KW", (1,)), "SparseFillEmptyRows"),
    (Form("sparse", "KW", (-1,)), "RaggedTensorToSparse"),
    (Form("parted"), "DynamicPartition"),
    (Form("stitched", "", ()), "ParallelDynamicStitch DynamicStitch"),
    # Arithmetic of keys: key_evaluation.py has the exact meaning of each op for one key.
    (Form("mapped", "K"), "AsString StringToHashBucketFast FloorMod FloorDiv"),
    (Form("mapped", "K", (1,)), "LookupTableFindV2"),
    # Arithmetic of keys, weights and norms. Mul, RealDiv, DivNoNan and Select also scale vectors.
    (Form("mapped", "KW"), "Cast"),
    (Form("mapped", "KWN", ()), "Add AddV2 Sub"),
    (Form("mapped", _ANY, ()), "Mul"),
    (Form("mapped", "WVN", ()), "RealDiv DivNoNan"),
    (Form("mapped", "WV"), "Square"),
    (Form("mapped", "W", ()), "Pow"),
    (Form("mapped", "WN"), "Sqrt Rsqrt"),
    (Form("mapped", _COMPARED, ()), "Maximum Minimum Less LessEqual Greater GreaterEqual Equal NotEqual"),
    (Form("mapped", _COMPARED, ()), "LogicalAnd LogicalOr"),
    (Form("mapped", _COMPARED), "LogicalNot"),
    (Form("mapped", "KWVN", ()), "Select SelectV2"),
    (Form("reduced", "VQ"), "Sum"),
    (Form("reduced", "WV"), "SegmentSum UnsortedSegmentSum"),
    (Form("reduced", "V"), "Mean SegmentMean SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN"),
    (Form("reduced", "V"), "SparseSegmentSumWithNumSegments SparseSegmentMeanWithNumSegments"),
    (Form("reduced", "V"), "SparseSegmentSqrtNWithNumSegments"),
    (Form("reduced"), "Prod Max Min All Any"),
    (Form("laid_out"), "Range Cumsum SparseReshape"),
)
FORMS: Mapping[str, Form] = {op: form for form, ops in _FORMS for op in ops.split()}


# The decimal texts that AsString writes.
DECIMAL = re.compile(rb"0|-?[1-9][0-9]*")
LIMITS = {
    dtype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


class NotRead(Exception):
    """Raised where a description ends; the message names the op and says what is not known about it."""


class NotHere(NotRead):
    """Raised for a tensor that is no lookup, though all ops before it are known: one that follows may be a lookup."""


class Split(Exception):
    """Raised if the keys of an interval are not treated alike; `at` is the first key of the second half."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True)
class Shifted:
    """The key itself plus a number: an integer key for integers, the key's text for strings (then `by` is 0)."""

    by: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same value for all keys: a number, a truth value or a string."""

    value: Any


@dataclass(frozen=True, slots=True)
class Text:
    """The decimal text of an integer key."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """`first` plus the remainder of the key's fingerprint (of its text) divided by `buckets`."""

    buckets: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Within:
    """An integer between low and high, both included, of which no more is known; `op` computes it."""

    low: int
    high: int
    op: str


Known = Shifted | Fixed | Text | Hashed | Within
# The keys of one case: first and last integer; None: all strings but the special ones.
Interval = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of keys that a graph treats alike, and the value of each examined tensor for them."""

    keys: Interval
    values: tuple[Known, ...]


@dataclass(slots=True)
class KeyGraph:
    """The part of one graph that depends on a feature's key.

    source: the placeholder's tensor that is fed the keys. dtype: "int64", "int32" or "string".
    constant: returns the value of a tensor that depends on no input.
    table: returns the keys and values of the lookup table whose handle is the given tensor.
    part_numbers: nodes that cast numbers of parts of a table.
    """

    flat: FlatGraph
    source: str
    dtype: str
    is_constant: Callable[[str], bool]
    constant: Callable[[str], Array]
    table: Callable[[str], tuple[Array, Array]]
    part_numbers: frozenset[str] = frozenset()
    _tables: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def parts(self, tensor: str) -> Iterator[str]:
        """Yields the tensors between a tensor and the keys, the tensor first, each once; constants are left out."""
        seen, todo = {tensor}, [tensor]
        while todo:
            name = todo.pop()
            yield name
            if name != self.source:
                for given in self.data(name):
                    if given not in seen and not self.is_constant(given):
                        seen.add(given)
                        todo.append(given)

    def data(self, name: str) -> list[str]:
        """Returns the tensors from whose elements a tensor's elements are taken or computed."""
        node = self.flat.nodes[node_of(name)]
        form, inputs = FORMS[node.op], self.flat.data_inputs(node.name)
        if form.rule == "mapped" and node.op != "LookupTableFindV2":
            return inputs
        return form.data_of(inputs)

    def lookup_table(self, find: str) -> tuple[Array, Array]:
        handle = self.flat.data_inputs(node_of(find))[0]
        if handle not in self._tables:
            self._tables[handle] = self.table(handle)
        return self._tables[handle]


def attribute(node: Any, name: str) -> Any:
    """Returns the AttrValue of a node's attribute, or the op's default, which a saved graph leaves out."""
    from tensorflow.python.framework import op_def_registry

    if name in node.attr:
        return node.attr[name]
    return next(declared.default_value for declared in op_def_registry.get(node.op).attr if declared.name == name)


def found_in(keys: Array, values: Array, wanted: Array, missing: Array) -> Array:
    """Returns the value of each wanted key in a lookup table, and `missing` for keys that the table lacks."""
    row_of = dict(zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True))
    others = np.broadcast_to(missing, wanted.shape).reshape(-1).tolist()
    found = [row_of.get(key, other) for key, other in zip(wanted.reshape(-1).tolist(), others, strict=True)]
    return np.array(found, values.dtype).reshape(wanted.shape)


# The graph's reaction to one id: it refused the request, dropped the id, or read the row with this number.
Outcome = Literal["refused", "dropped"] | int

# The row of ids that belong to no part of a table. Unless the graph drops them before, TensorFlow casts the number of a
# part to int32, and so reads an arbitrary row for ids whose number wraps, some 2^31 times the rows of a part. The
# server refuses them.
NO_PART = Within(-1, -1, "DynamicPartition")


@dataclass(frozen=True, slots=True)
class IdPolicy:
    """A policy for ids outside of a table; its fields mean the same as in manifest.LookupFeature."""

    on_bad_id: BadIdPolicy
    default_row: int = 0


def find_policy(pieces: Sequence[Piece], vocabulary_size: int, outcome: Callable[[int], Outcome | None]) -> IdPolicy:
    """Returns the policy that describes what the graph does with every id outside [0, V), and reads row i for id i.

    Args:
      pieces: intervals of ids that the graph treats alike; a piece's first value is the row, the others are the
        conditions by which ids count. Each row number lies in the table or outside it for a whole piece.
      outcome: sends the graph one id; None if its vector is neither the row of `pieces` nor that of a dropped id.

    Raises:
      NotRead: the graph maps ids to rows in another way; the message names an id.
    """
    size = vocabulary_size
    seen = []
    usual = None
    # Ids of the table come first.
    for piece in sorted(pieces, key=lambda piece: (_is_outside(piece, size), piece.keys or (0, 0))):
        low, high = piece.keys or (0, 0)
        row, *conditions = piece.values
        inside = not _is_outside(piece, size)
        usual = conditions if usual is None else usual
        for end in sorted({low, high}):
            found = outcome(end)
            if row == NO_PART and found != "dropped":
                found = "refused"
            if found != "dropped" and found != (wanted := row_at(row, end, size)):
                raise NotRead(f"id {end} {_said(found)} in a trial; by the graph's ops it {_said(wanted)}")
            if inside and found != end:
                raise NotRead(f"id {end} {_said(found)}")
            if found != "dropped" and conditions != usual:
                # With another weight, or in a row of another length, the id may not count.
                raise NotRead(f"id {end} counts under other conditions than other ids")
            if not inside:
                seen.append((end, found))
    for policy in (
        IdPolicy("error"),
        IdPolicy("drop"),
        IdPolicy("drop_negative"),
        IdPolicy("wrap"),
        IdPolicy("clamp"),
        *(IdPolicy("default_row", row) for row in sorted({found for _, found in seen if isinstance(found, int)})),
    ):
        if all(found == expected(policy, bad, size) for bad, found in seen):
            return policy
    told = next((bad, found) for bad, found in seen if found != "refused")
    raise NotRead(f"id {told[0]} {_said(told[1])}, and no policy does so for the ids outside the table")


def _is_outside(piece: Piece, size: int) -> bool:
    low, high = piece.keys or (0, 0)
    return low < 0 or high >= size


def expected(policy: IdPolicy, bad: int, size: int) -> Outcome:
    if policy.on_bad_id == "drop" or (policy.on_bad_id == "drop_negative" and bad < 0):
        return "dropped"
    if policy.on_bad_id == "wrap" and -size <= bad < 0:
        return bad + size
    if policy.on_bad_id == "clamp":
        return 0 if bad < 0 else size - 1
    return policy.default_row if policy.on_bad_id == "default_row" else "refused"


def row_at(value: object, key: int, size: int) -> Outcome:
    """Returns the row that a value of a piece means for one key; "refused" for a row that the table lacks."""
    if isinstance(value, Within):
        if value.high < 0 or value.low >= size:
            return "refused"
        raise NotRead(f"{value.op} maps several ids to one row")
    if not isinstance(value, (Fixed, Shifted)):
        raise NotRead("rows are hashes of integers")
    row = key + value.by if isinstance(value, Shifted) else int(value.value)
    return row if 0 <= row < size else "refused"


def _said(outcome: Outcome | None) -> str:
    if isinstance(outcome, int):
        return f"reads row {outcome}"
    return "is refused" if outcome == "refused" else "is dropped" if outcome == "dropped" else "reads no row"
