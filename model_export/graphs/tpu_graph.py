"""Adds {serve, tpu} MetaGraphs to SavedModels, by which a TPU serves a model, as TPUEstimator exported until 2.15.

The dense part of the model becomes a function for the TPU's own compiler, called by TPUPartitionedCall; parsing,
vocabularies and padding stay on the host. A SavedModel holds such a MetaGraph beside the {serve} one, and both read the
same variables. A TPU host runs it unchanged. On a CPU it runs after `service.artifact.tpu_lowering` has replaced the
TPU's ops; our server does that when it loads the version.

NOTE: for a SavedModel of two MetaGraphs `tf.saved_model.load` needs the argument `tags=["serve"]`.

Source: the layout of the graph is what TPUEstimator of TensorFlow 2.15 wrote (export_to_tpu=True).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from service.types import INIT_SIGNATURE

# The key under which an object-based checkpoint stores the description of its object graph.
_OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Collections that may name a graph's initialiser: the one of TensorFlow 2 and late TensorFlow 1, and the one of early
# TensorFlow 1.
_INIT_COLLECTION, _LEGACY_COLLECTION = "saved_model_main_op", "legacy_init_op"


def merge_meta_graphs(folder: Path, meta_graph: Any) -> None:
    """Adds a MetaGraphDef to a SavedModel with the same variables; replaces saved_model.pb atomically.

    Raises:
      ExportError: the folder holds no SavedModel, already has a MetaGraph with these tags, lacks an asset, or its
        MetaGraphs restore other variables.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    file = folder / "saved_model.pb"
    if not file.is_file():
        raise ExportError(f"{folder} is no SavedModel: it has no saved_model.pb")
    saved_model = SavedModel.FromString(file.read_bytes())
    tags = set(meta_graph.meta_info_def.tags)
    for present in saved_model.meta_graphs:
        if set(present.meta_info_def.tags) == tags:
            raise ExportError(f"{folder} has a MetaGraph tagged {{{', '.join(sorted(tags))}}} already")
        _check_same_variables(present, meta_graph)
    missing = [
        asset.filename for asset in meta_graph.asset_file_def if not (folder / "assets" / asset.filename).is_file()
    ]
    if missing:
        raise ExportError(f"{folder} lacks assets of the other MetaGraph: {', '.join(sorted(missing))}")
    saved_model.meta_graphs.add().CopyFrom(meta_graph)
    for graph in saved_model.meta_graphs:
        hide_initialiser(graph)
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(saved_model.SerializeToString(deterministic=True))
    os.replace(partial, file)
    if (folder / "fingerprint.pb").exists():
        from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

        write_fingerprint(str(folder))


def hide_initialiser(meta_graph: Any) -> None:
    """Moves the name of the graph's initialiser from the signatures to a collection that every loader reads."""
    # tf.saved_model.load treats a SavedModel with two MetaGraphs as one of TensorFlow 1: it would load the initialiser
    # as a signature, and fail if the initialiser reads an asset. Every loader finds the initialiser in the collection
    # instead.
    if INIT_SIGNATURE in meta_graph.signature_def:
        operation = meta_graph.signature_def[INIT_SIGNATURE].outputs[INIT_SIGNATURE].name.partition(":")[0]
        set_initialiser(meta_graph, operation)
        del meta_graph.signature_def[INIT_SIGNATURE]


def initialiser_of(meta_graph: Any) -> str:
    """Returns a MetaGraph's initialiser, which a loader runs last; "" if none. Call hide_initialiser() first."""
    for key in (_INIT_COLLECTION, _LEGACY_COLLECTION):
        names = meta_graph.collection_def[key].node_list.value if key in meta_graph.collection_def else []
        if names:
            return str(names[0]).partition(":")[0]
    return ""


def set_initialiser(meta_graph: Any, operation: str) -> None:
    meta_graph.collection_def[_INIT_COLLECTION].node_list.value[:] = [operation]


def _check_same_variables(present: Any, added: Any) -> None:
    tags = [f"{{{', '.join(sorted(graph.meta_info_def.tags))}}}" for graph in (present, added)]
    keys = [_restored_keys(graph) for graph in (present, added)]
    if keys[0] != keys[1]:
        raise ExportError(
            f"MetaGraphs {tags[0]} and {tags[1]} do not restore the same variables: only {tags[0]} has "
            f"{sorted(keys[0] - keys[1])}, only {tags[1]} has {sorted(keys[1] - keys[0])}"
        )
    shapes = [_variable_shapes(graph) for graph in (present, added)]
    if shapes[0] != shapes[1]:
        differing = sorted((shapes[0] - shapes[1]) + (shapes[1] - shapes[0]))
        raise ExportError(f"MetaGraphs {tags[0]} and {tags[1]} have variables of different shapes: {differing}")


def _restored_keys(meta_graph: Any) -> set[str]:
    graph = meta_graph.graph_def
    keys: set[str] = set()
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op == "RestoreV2":
                names = by_name[node.input[1].partition(":")[0]]
                keys |= {key.decode() for key in tf.make_ndarray(names.attr["value"].tensor).reshape(-1)}
    return keys - {_OBJECT_GRAPH_KEY}


def _variable_shapes(meta_graph: Any) -> Counter[tuple[str, str]]:
    shapes: Counter[tuple[str, str]] = Counter()
    for node in meta_graph.graph_def.node:
        if node.op == "VarHandleOp":
            shape = f"{tf.as_dtype(node.attr['dtype'].type).name}{tf.TensorShape(node.attr['shape'].shape)}"
            shapes[node.attr["shared_name"].s.decode() or node.name, shape] += 1
    return shapes


TPU_TAGS = ("serve", "tpu")


def tpu_call(build: Callable[..., Mapping[str, Any]], *features: Any) -> dict[str, Any]:
    """Adds a call to the current graph that runs the dense part of a model (build) on a TPU core.

    The current graph is a v1 graph, in which build may create variables with `get_variable` (they become variables of
    that graph), or the body of a tf.function, in which build uses existing variables. Tensors that build closes over
    become arguments of the call. While build runs, TPU embedding columns (TensorFlow's and model_export's) use their
    padded tensor-core lookup and place its string operations on the host. Place your own string operations before this
    call.

    NOTE: a machine without a TPU can run no part of a v1 graph with such a call, not even its initializers: save the
    variables from the {serve} graph.

    Args:
      build: returns name -> tensor, computed by ops that XLA compiles; called once.
      features: the arguments of build; any structure of tensors.

    Returns:
      name -> tensor, with the static shapes of build's tensors.

    Raises:
      ExportError: there is no current graph, or build returns no outputs.
    """
    from tensorflow.python.framework.func_graph import FuncGraph

    if tf.executing_eagerly():
        raise ExportError("tpu_call: a call for a TPU is part of a graph: use it within a tf.function or a v1 graph")
    names: list[str] = []
    shapes: list[Any] = []

    def rewritten() -> Any:
        def dense() -> list[Any]:
            outputs = build(*features)
            if not outputs:
                raise ExportError("tpu_call: build returned no outputs")
            names[:] = sorted(outputs)
            shapes[:] = [outputs[name].shape for name in names]
            return [outputs[name] for name in names]

        return tf.compat.v1.tpu.rewrite(dense)

    is_function = isinstance(tf.compat.v1.get_default_graph(), FuncGraph)
    with tpu_inference():
        outputs = _call_from_function(rewritten) if is_function else _call_from_v1_graph(rewritten)
    for tensor, shape in zip(outputs, shapes, strict=True):
        tensor.set_shape(shape)
    return dict(zip(names, outputs, strict=True))


@contextmanager
def tpu_inference() -> Iterator[None]:
    """Tells TPU embedding columns, while the `with` block builds a graph, that a TPU serves it; tpu_call does so too.

    Use it for a model function that places ops on the TPU itself.
    """
    from tensorflow.python.tpu import tpu

    context = tpu._TPUInferenceContext("tpu_inference", check_ops=False)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def add_tpu_meta_graph(folder: Path, module: Any, signatures: Mapping[str, Any]) -> None:
    """Adds a {serve, tpu} MetaGraph to a SavedModel that tf.saved_model.save wrote for the same module.

    Args:
      folder: the SavedModel; its variables are neither read nor written again.
      module: the trackable that was saved; since then only functions may have been attached or removed.
      signatures: name -> tf.function with an input signature, which runs its dense part in tpu_call or belongs to the
        {serve} MetaGraph. A function with tpu_call must be new: one that was traced for {serve} keeps that trace.

    Raises:
      ExportError: merge_meta_graphs() refuses the MetaGraph.
    """
    from tensorflow.python.saved_model.save import export_meta_graph

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "meta_graph.pb"
        options = tf.saved_model.SaveOptions(extra_tags=[TPU_TAGS[1]])
        # Unlike tf.saved_model.save, export_meta_graph does not write the variables, which the folder already has.
        export_meta_graph(module, str(file), dict(signatures), options)
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(file.read_bytes())
    merge_meta_graphs(folder, meta_graph)


def _call_from_v1_graph(rewritten: Callable[[], Any]) -> list[Any]:
    from tensorflow.python.framework import function
    from tensorflow.python.tpu.tpu import prune_unconnected_ops_from_xla

    # The function is a Defun, because a Defun creates the variables of its body in the graph around it.
    @function.Defun(capture_resource_var_by_value=False)  # type: ignore[untyped-decorator]
    def tpu_subgraph() -> Any:
        outputs = rewritten()
        prune_unconnected_ops_from_xla(tf.compat.v1.get_default_graph())
        return outputs

    # Reading captured_inputs makes the Defun build its function.
    captures = tpu_subgraph.captured_inputs
    dtypes = [output.type for output in tpu_subgraph.definition.signature.output_arg]
    return _partitioned_call(tpu_subgraph, captures, dtypes)


def _call_from_function(rewritten: Callable[[], Any]) -> list[Any]:
    concrete = tf.function(rewritten, autograph=False).get_concrete_function()
    return _partitioned_call(concrete, concrete.captured_inputs, [output.dtype for output in concrete.outputs])


def _partitioned_call(function: Any, arguments: Any, dtypes: list[Any]) -> list[Any]:
    from tensorflow.python.tpu.ops import tpu_ops

    outputs = tpu_ops.tpu_partitioned_call(
        args=list(arguments), device_ordinal=tpu_ops.tpu_ordinal_selector(), Tout=dtypes, f=function
    )
    return list(outputs)
