"""Checks whether a graph behind its lookups computes each row independently, so that requests may share one run."""

from __future__ import annotations

from service.graph.flat_graph import FlatGraph

# Ops that can compute each row of a batch independently. An op's axes and shapes decide whether it does;
# loading.tower_batching tests this by running rows together and separately.
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
    """Says whether all given nodes have ops that can compute each row of a batch independently."""
    return all(flat.nodes[name].op in _OPS for name in nodes)
