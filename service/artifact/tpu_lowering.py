"""Rewrites a MetaGraph that was exported for a TPU so that a CPU runs it, with unchanged arithmetic.

TensorFlow tags such a MetaGraph {serve, tpu}, and expects its own rewrites to compile it: the model is a function
called by TPUPartitionedCall, nodes are marked for a cluster, inputs and outputs pass through ops of a replica. None of
these has a CPU kernel. The ops between them have one: the padding, the cut at K ids, the dense gather and the mask of a
tensor-core lookup. Lowering removes the TPU ops and keeps the others, which compute the numbers.

Two differences from a TPU remain: the CPU's gather refuses an id outside the table where XLA would clamp it, and
sums may differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from service.errors import ArtifactError

TPU_TAG = "tpu"

# DataType numbers of int32 and string, from tensorflow/core/framework/types.proto.
_DT_INT32, _DT_STRING = 3, 7

# Prefixes of node attributes to remove: TensorFlow's TPU rewrite adds them. "_XlaMustCompile" (jit_compile) stays,
# because XLA compiles for CPUs too.
_MARKS = ("_tpu", "_xla", "_pivot_for_cluster")

# TPU op that copies its input if there is only one replica or partition -> the op's attribute that holds the number of
# replicas or partitions.
_PASS_THROUGH = {
    "TPUReplicatedInput": "N",
    "TPUReplicatedOutput": "num_replicas",
    "TPUPartitionedInput": "N",
    "TPUPartitionedOutput": "num_splits",
}

# Ops that only TPUs have kernels for, although their names do not have TPU in them; the names of more such ops begin
# with one of _TPU_ONLY_PREFIXES.
_TPU_ONLY = frozenset({"CrossReplicaSum", "AllToAll", "CollectivePermute"})
_TPU_ONLY_PREFIXES = (
    "Infeed",
    "Outfeed",
    "XlaSparse",
    "XlaHostCompute",
    "XlaSendToHost",
    "XlaRecvFromHost",
    "_XlaHostCompute",
    "_XlaSendFromHost",
    "_XlaRecvAtHost",
)


def lower(meta_graph: Any) -> None:
    """Rewrites a MetaGraphDef in place so that a CPU can run it; a graph without TPU ops only loses its tag "tpu".

    Names of nodes, functions and signatures stay, and so do references to variables: the rewritten graph reads the same
    `variables/`.

    Args:
      meta_graph: a MetaGraphDef of TensorFlow's or of any other descriptor pool.

    Raises:
      ArtifactError: an op remains that only a TPU can run, or the graph computes more than one replica.

    Concurrency: one caller at a time per message.
    """
    graph = meta_graph.graph_def
    # Nodes of the graph refer to inputs as "node:number", so the references stay valid when a node gets another op.
    for node in graph.node:
        _lower_node(node)
    for function in graph.library.function:
        _lower_function(function)
    left = sorted({node.op for node in _all_nodes(graph) if is_tpu_only(node.op)})
    if left:
        raise ArtifactError(
            f"the graph can not run on a CPU: only a TPU has {', '.join(left)}; export it for serving, or load another "
            "of its MetaGraphs with --saved_model_tags"
        )
    tags = [tag for tag in meta_graph.meta_info_def.tags if tag != TPU_TAG]
    del meta_graph.meta_info_def.tags[:]
    meta_graph.meta_info_def.tags.extend(tags)


def is_tpu_only(op: str) -> bool:
    """Says, by an op's name, whether only TPUs have a kernel for it.

    >>> is_tpu_only("TPUEmbeddingActivations"), is_tpu_only("XlaDot")
    (True, False)
    """
    return "TPU" in op or op in _TPU_ONLY or op.startswith(_TPU_ONLY_PREFIXES)


def _all_nodes(graph: Any) -> Iterable[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _lower_function(function: Any) -> None:
    # Nodes of a function refer to inputs by output names ("node:outputs:0"), which change where the new op's output has
    # another name.
    output_names = {node.name: name for node in function.node_def if (name := _lower_node(node))}

    def renamed(reference: str) -> str:
        node, _, output = reference.partition(":")
        if not output or node not in output_names:
            return reference
        return f"{node}:{output_names[node]}:{output.rpartition(':')[2]}"

    for node in function.node_def:
        inputs = [renamed(reference) for reference in node.input]
        del node.input[:]
        node.input.extend(inputs)
    for name, reference in list(function.ret.items()):
        function.ret[name] = renamed(reference)
    _drop_attributes(function.attr, lambda name: not name.startswith(_MARKS))
    for arguments in function.arg_attr.values():
        _drop_attributes(arguments.attr, lambda name: not name.startswith(_MARKS))


def _lower_node(node: Any) -> str | None:
    """Rewrites one node for the CPU; returns the new name of the node's output, None if the name does not change."""
    _drop_attributes(node.attr, lambda name: not name.startswith(_MARKS))
    if "TPU" in node.device.upper():
        # The node's device is removed: it names a TPU core, or a TPU's host ("job:tpu_worker"), and this machine has
        # neither.
        node.device = ""
    if node.op == "TPUPartitionedCall":
        _lower_call(node)
    elif node.op in _PASS_THROUGH:
        _check_single(node, _PASS_THROUGH[node.op])
        node.op = "Identity"
        _drop_attributes(node.attr, lambda name: name == "T" or name.startswith("_"))
        return "output"
    elif node.op == "TPUReplicateMetadata":
        _check_single(node, "num_replicas")
        _to_source(node, "NoOp")
    elif node.op in ("TPUOrdinalSelector", "TPURoundRobin"):
        _to_source(node, "Const", _DT_INT32).int_val.append(0)
        return "output"
    elif node.op == "TPUCompilationResult":
        # A node of the op TPUCompilationResult becomes a constant, an empty CompilationResultProto, which means that
        # the compilation succeeded.
        _to_source(node, "Const", _DT_STRING).string_val.append(b"")
        return "output"
    return None


def _lower_call(node: Any) -> None:
    arguments = [reference for reference in node.input if not reference.startswith("^")]
    if len(arguments) != len(node.attr["Tin"].list.type) + 1:
        raise ArtifactError(f"node {node.name!r}: TPUPartitionedCall has no input for its device ordinal")
    # The last data input of a TPUPartitionedCall, the number of a TPU core, is removed: the op StatefulPartitionedCall
    # has no such input.
    del node.input[len(arguments) - 1]
    node.op = "StatefulPartitionedCall"
    _drop_attributes(node.attr, lambda name: name in ("Tin", "Tout", "f") or name.startswith("_"))


def _check_single(node: Any, attribute: str) -> None:
    count = node.attr[attribute].i
    if count != 1:
        raise ArtifactError(
            f"node {node.name!r}: {node.op} joins {count} TPU cores; only graphs that serve from one can be lowered"
        )


def _to_source(node: Any, op: str, dtype: int | None = None) -> Any:
    """Turns a node into an op without data inputs; its control inputs stay, so that it still runs after the same nodes.

    For the op Const, returns the TensorProto of its value, to be filled.
    """
    control = [reference for reference in node.input if reference.startswith("^")]
    del node.input[:]
    node.input.extend(control)
    node.op = op
    _drop_attributes(node.attr, lambda name: name == "_has_manual_control_dependencies")
    if dtype is None:
        return None
    node.attr["dtype"].type = dtype
    tensor = node.attr["value"].tensor
    tensor.dtype = dtype
    tensor.tensor_shape.SetInParent()
    return tensor


def _drop_attributes(attributes: Any, is_kept: Callable[[str], bool]) -> None:
    for name in [name for name in attributes if not is_kept(name)]:
        del attributes[name]
