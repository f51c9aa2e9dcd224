"""Checks by its ops whether a graph behind its lookups can compute each row alone, so that requests may share a run."""

from __future__ import annotations

from service.graph.flat_graph import FlatGraph

# Ops that, with suitable axes and shapes, compute each row of the output from the same row of the inputs alone.
# loading.tower_batching tests whether the ops of a graph do so, by running rows together and separately.
_OPS = frozenset(
    """
    Const Placeholder VarHandleOp ReadVariableOp VariableV2 Identity NoOp StopGradient
    MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum BiasAdd Add AddV2 AddN Sub Mul Div RealDiv DivNoNan FloorDiv
    Maximum Minimum Pow SquaredDifference Mod FloorMod ClipByValue
    Relu Relu6 Elu Selu LeakyRelu Sigmoid Tanh Softplus Softsign Softmax LogSoftmax
    Exp Expm1 Log Log1p Sqrt Rsqrt Square Reciprocal Neg Abs Sign Floor Ceil Round Rint Erf Sin Cos
    Cast Shape Rank ConcatV2 Pack Unpack Split SplitV ExpandDims Squeeze Reshape StridedSlice Slice Transpose Tile Fill
    BroadcastTo ZerosLike OnesLike Prod Sum Mean Max Min All Any ArgMax TopKV2
    Select SelectV2 Greater GreaterEqual Less LessEqual Equal NotEqual LogicalAnd LogicalOr LogicalNot IsNan
    """.split()
)


def is_rowwise(flat: FlatGraph, nodes: set[str]) -> bool:
    """Says whether all given nodes have ops that can compute each output row from the same row of the inputs alone."""
    return all(flat.nodes[name].op in _OPS for name in nodes)
