"""Names the TensorFlow ops that one thread may run, in TensorFlow's single-threaded executor.

That executor calls OpKernel::Compute of each node on the thread that runs the graph. For a kernel that is an
AsyncOpKernel, Compute leaves the work to threads of TensorFlow's pool, and waits. Such kernels call functions
(PartitionedCall, If, While, MapDefun), or wait for others (queues, batches, transfers). The nodes of a called function
wait in the same way, on a thread of the pool for another thread of the pool: with as many requests as the pool has
threads, all wait for ever. So a graph has that executor only if each of its ops is listed here: their kernels for CPUs
are no AsyncOpKernels. They compute on the calling thread, at most with the help of threads within an operation, which
wait for no other thread. For GPUs, some of them are AsyncOpKernels, so such a session uses none.

Source: AsyncOpKernel::Compute in tensorflow/core/framework/op_kernel.cc; the classes whose type information names
AsyncOpKernel as their base in libtensorflow_cc.so.2 and libtensorflow_framework.so.2 (2.21.0);
tensorflow/core/common_runtime/single_threaded_executor.cc, which refuses references and control flow of TensorFlow 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Ops that keep no state.
_STATELESS_OPS = frozenset(
    """
    Placeholder PlaceholderWithDefault Const VarHandleOp ReadVariableOp Identity IdentityN NoOp StopGradient
    PreventGradient Snapshot Cast Bitcast Shape ShapeN Size Rank Reshape ExpandDims Squeeze Transpose
    StridedSlice Slice Split SplitV Pack Unpack Concat ConcatV2 Gather GatherV2 ResourceGather ZerosLike
    OnesLike Select SelectV2 ClipByValue Reverse ReverseV2 Cumsum Cumprod ArgMax ArgMin MatMul BatchMatMul
    BatchMatMulV2 BatchMatMulV3 Einsum BiasAdd Add AddV2 AddN Sub Mul Div RealDiv DivNoNan MulNoNan FloorDiv
    FloorMod Maximum Minimum Neg Abs Sign Square Sqrt Rsqrt Reciprocal SquaredDifference Pow Exp Expm1 Log Log1p
    Erf Erfc Sin Cos Tanh Sigmoid Softplus Softsign Relu Relu6 LeakyRelu Elu Selu Softmax LogSoftmax Floor Ceil
    Round Rint IsNan IsInf IsFinite FusedBatchNormV3 L2Loss Sum Mean Max Min Prod All Any Equal NotEqual Less
    LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot Assert EnsureShape CheckNumerics Fill Range
    LinSpace Tile BroadcastTo BroadcastArgs Pad PadV2 MirrorPad OneHot Where Unique UniqueV2 UniqueWithCounts
    TopK TopKV2 InTopKV2 GatherNd ScatterNd TensorScatterUpdate TensorScatterAdd InvertPermutation
    DynamicPartition DynamicStitch ParallelDynamicStitch LowerBound UpperBound Bincount DenseBincount Bucketize
    MatrixBandPart MatrixDiag MatrixDiagV3 MatrixDiagPart MatrixDiagPartV3 MatrixSetDiagV3 MatrixInverse
    ReverseSequence Roll Mod TruncateDiv TruncateMod Xdivy Xlogy BitwiseAnd BitwiseOr BitwiseXor Invert
    LeftShift RightShift ApproximateEqual Tan Asin Acos Atan Atan2 Sinh Cosh Digamma Lgamma Conv2D
    DepthwiseConv2dNative MaxPool AvgPool FusedBatchNorm FusedBatchNormV2 SegmentSum SegmentMean SegmentMax
    SegmentMin SegmentProd UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN SparseSegmentSumWithNumSegments
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtNWithNumSegments SparseReshape SparseFillEmptyRows
    SparseSlice SparseConcat SparseReorder SparseToDense SparseTensorDenseMatMul SparseReduceSum
    SparseDenseCwiseMul SparseBincount SparseCross SparseCrossV2 SparseCrossHashed RaggedRange RaggedGather
    RaggedCross RaggedBincount RaggedTensorToSparse RaggedTensorToTensor RaggedFillEmptyRows StringToHashBucket
    StringToHashBucketFast StringToHashBucketStrong StringJoin StringSplit StringSplitV2 StringLower StringUpper
    StringLength StringStrip StringNGrams StringToNumber AsString Substr ReduceJoin RegexReplace RegexFullMatch
    StaticRegexReplace StaticRegexFullMatch UnicodeTranscode UnicodeDecode UnicodeDecodeWithOffsets DecodeRaw
    DecodeBase64 EncodeBase64 DecodeCSV ParseExample ParseExampleV2 ParseTensor Fingerprint HashTableV2
    MutableHashTableV2 MutableDenseHashTableV2 LookupTableFindV2 LookupTableSizeV2
    """.split()
)

# Ops that change state, when a session is prepared.
_PREPARING_OPS = frozenset(
    """
    RestoreV2 AssignVariableOp VarIsInitializedOp InitializeTableV2 InitializeTableFromTextFileV2
    LookupTableImportV2
    """.split()
)


def may_run_on_one_thread(graph_def: Any) -> bool:
    """Says whether TensorFlow's single-threaded executor may run a GraphDef: no node can wait for another thread."""
    ops = {node.op for node in graph_def.node}
    return not graph_def.library.function and ops <= _STATELESS_OPS | _PREPARING_OPS


def are_stateless(nodes: Iterable[Any]) -> bool:
    """Says whether nodes (NodeDefs) can run on one thread and write no state, so that their order does not matter."""
    return all(node.op in _STATELESS_OPS for node in nodes)
