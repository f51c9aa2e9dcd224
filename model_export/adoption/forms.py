"""Lists the ops that may lie between a signature's inputs and the vectors of a lookup, and says what each op does.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
    """One row of the table: what an op does.

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

FORMS: Mapping[str, Form] = {
    "Identity": Form("same", _ANY),
    "Snapshot": Form("same", _ANY),
    "StopGradient": Form("same", _ANY),
    "PreventGradient": Form("same", _ANY),
    "Reshape": Form("arranged", _ANY),
    "ExpandDims": Form("arranged", _ANY),
    "Squeeze": Form("arranged", _ANY),
    "GatherV2": Form("moved", _ANY),
    "GatherNd": Form("moved", _ANY),
    "Slice": Form("moved", _ANY),
    "StridedSlice": Form("moved", _ANY),
    "Tile": Form("moved", "WVN"),
    "BroadcastTo": Form("moved", "WVN"),
    # The elements that are added are zeros, or a constant.
    "Pad": Form("moved", "WV"),
    "PadV2": Form("moved", "WV"),
    "Fill": Form("moved", "", (1,)),
    "Pack": Form("moved", "", ()),
    "ConcatV2": Form("moved", "", (), tail=1),
    "Shape": Form("sized", _ANY),
    "Size": Form("sized", _ANY),
    "Rank": Form("sized", _ANY),
    "ZerosLike": Form("constant", _ANY),
    "OnesLike": Form("constant", _ANY),
    "Where": Form("positions", "KW"),
    "Unique": Form("distinct", "K"),
    "SparseFillEmptyRows": Form("filled", "KW", (1,)),
    "RaggedTensorToSparse": Form("sparse", "KW", (-1,)),
    "DynamicPartition": Form("parted"),
    "ParallelDynamicStitch": Form("stitched", "", ()),
    "DynamicStitch": Form("stitched", "", ()),
    # Arithmetic of keys: key_function.py has the exact meaning of each op for one key.
    "AsString": Form("mapped", "K"),
    "StringToHashBucketFast": Form("mapped", "K"),
    "LookupTableFindV2": Form("mapped", "K", (1,)),
    "FloorMod": Form("mapped", "K"),
    "FloorDiv": Form("mapped", "K"),
    # Arithmetic of keys, weights and norms. Mul, RealDiv, DivNoNan and Select also scale vectors.
    "Cast": Form("mapped", "KW"),
    "Add": Form("mapped", "KWN", ()),
    "AddV2": Form("mapped", "KWN", ()),
    "Sub": Form("mapped", "KWN", ()),
    "Mul": Form("mapped", _ANY, ()),
    "RealDiv": Form("mapped", "WVN", ()),
    "DivNoNan": Form("mapped", "WVN", ()),
    "Square": Form("mapped", "WV"),
    "Pow": Form("mapped", "W", ()),
    "Sqrt": Form("mapped", "WN"),
    "Rsqrt": Form("mapped", "WN"),
    "Maximum": Form("mapped", _COMPARED, ()),
    "Minimum": Form("mapped", _COMPARED, ()),
    "Less": Form("mapped", _COMPARED, ()),
    "LessEqual": Form("mapped", _COMPARED, ()),
    "Greater": Form("mapped", _COMPARED, ()),
    "GreaterEqual": Form("mapped", _COMPARED, ()),
    "Equal": Form("mapped", _COMPARED, ()),
    "NotEqual": Form("mapped", _COMPARED, ()),
    "LogicalAnd": Form("mapped", _COMPARED, ()),
    "LogicalOr": Form("mapped", _COMPARED, ()),
    "LogicalNot": Form("mapped", _COMPARED),
    "Select": Form("mapped", "KWVN", ()),
    "SelectV2": Form("mapped", "KWVN", ()),
    "Sum": Form("reduced", "WVQ"),
    "Mean": Form("reduced", "V"),
    "SegmentSum": Form("reduced", "WV"),
    "SegmentMean": Form("reduced", "V"),
    "UnsortedSegmentSum": Form("reduced", "WV"),
    "SparseSegmentSum": Form("reduced", "V"),
    "SparseSegmentMean": Form("reduced", "V"),
    "SparseSegmentSqrtN": Form("reduced", "V"),
    "SparseSegmentSumWithNumSegments": Form("reduced", "V"),
    "SparseSegmentMeanWithNumSegments": Form("reduced", "V"),
    "SparseSegmentSqrtNWithNumSegments": Form("reduced", "V"),
    "Prod": Form("reduced"),
    "Max": Form("reduced"),
    "Min": Form("reduced"),
    "All": Form("reduced"),
    "Any": Form("reduced"),
    "Range": Form("laid_out"),
    "Cumsum": Form("laid_out"),
    "SparseReshape": Form("laid_out"),
}
