"""Writes {serve, tpu} MetaGraphs, by which a TPU serves a model, as TPUEstimator exported them until 2.15.

The dense part of the model becomes a function for the TPU's own compiler, called by TPUPartitionedCall; parsing,
vocabularies and padding stay on the host. A SavedModel holds such a MetaGraph beside the {serve} one, and both read the
same variables. A TPU host runs it unchanged. On a CPU it runs after `service.artifact.tpu_lowering` has replaced the
TPU's ops; our server does that when it loads the version.

NOTE: for a SavedModel of two MetaGraphs `tf.saved_model.load` needs the argument `tags=["serve"]`.

Source: the layout of the graph is what TPUEstimator of TensorFlow 2.15 wrote (export_to_tpu=True).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.graphs.meta_graphs import merge_meta_graphs
from model_export.tensorflow_setup import tf

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

    is_function = isinstance(tf.compat.v1.get_default_graph(), _func_graph_type())
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


def _func_graph_type() -> Any:
    from tensorflow.python.framework.func_graph import FuncGraph

    return FuncGraph
