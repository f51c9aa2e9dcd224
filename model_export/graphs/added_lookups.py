"""Adds lookup signatures to another program's SavedModel: appends nodes to its graph, and changes none.

The nodes read the model's own variables. Nodes and SignatureDefs go into saved_model.pb, where TensorFlow Serving and
our server find signatures. `tf.saved_model.load(...).signatures` of TensorFlow 2 reads the object graph instead, so it
does not show the added signatures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.graphs.lookup_graph import build_lookup
from model_export.graphs.reduced_graph import GraphTable
from model_export.graphs.signature_runner import read_saved_model, serving_graph
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import SignatureEntry


def add_lookups(
    artifact: Path,
    spec: ModelSpec,
    lookups: Mapping[str, SignatureEntry],
    handles: Mapping[str, Sequence[str]],
) -> None:
    """Rewrites artifact/saved_model.pb with lookup signatures added; loads no variable.

    Args:
      handles: table of the spec -> nodes of its variable, one per part in order of rows (a single one if it is whole).

    Raises:
      ExportError: a signature of the same name exists, or no node of the graph holds a table.
    """
    saved_model = read_saved_model(artifact)
    meta_graph = serving_graph(saved_model, artifact)
    if taken := sorted(set(lookups) & set(meta_graph.signature_def)):
        raise ExportError(f"{artifact} has signatures {taken} already; [signatures.{taken[0]}] in the spec maps one")
    if missing := [table for table, nodes in handles.items() if not nodes]:
        raise ExportError(
            f"table {missing[0]!r}: no variable of the graph holds its numbers, so no lookup can be added"
        )
    graph_def = tf.compat.v1.GraphDef.FromString(meta_graph.graph_def.SerializeToString())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        before = {node.name for node in graph_def.node}
        parts = {table: [_value(graph, node) for node in nodes] for table, nodes in handles.items()}
        whole = {table: _readable(table, several) for table, several in parts.items()}
        definitions = {name: build_lookup(entry, spec, whole).signature_def(name) for name, entry in lookups.items()}
        extended = tf.compat.v1.train.export_meta_graph(graph=graph, clear_extraneous_savers=True)
    append_nodes(meta_graph, extended, before)
    for name, definition in definitions.items():
        meta_graph.signature_def[name].MergeFromString(definition.SerializeToString())
    _write(artifact, saved_model)


def _readable(table: str, parts: list[Any]) -> Any:
    """Returns a table in the form that build_lookup takes: half floats are converted, float64 is answered as stored."""
    is_half = parts[0].dtype in (tf.float16, tf.bfloat16)
    if len(parts) == 1:
        return GraphTable(parts[0]) if is_half else parts[0]
    if is_half:
        raise ExportError(f"table {table!r} is {parts[0].dtype.name} in parts, so no lookup can be added")
    return parts


def write_graph(artifact: Path, meta_graph: Any) -> None:
    saved_model = read_saved_model(artifact)
    serving_graph(saved_model, artifact).ParseFromString(meta_graph.SerializeToString())
    _write(artifact, saved_model)


def _write(artifact: Path, saved_model: Any) -> None:
    (artifact / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    # TensorFlow computed fingerprint.pb from the old saved_model.pb, so the file is removed.
    (artifact / "fingerprint.pb").unlink(missing_ok=True)


def _value(graph: Any, node: str) -> Any:
    operation = graph.get_operation_by_name(node)
    handle, shape = operation.outputs[0], operation.get_attr("shape")
    if operation.type == "VarHandleOp":
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=operation.get_attr("dtype"))
    else:
        value = tf.identity(handle)
    return tf.ensure_shape(value, tf.TensorShape(shape))


def append_nodes(meta_graph: Any, extended: Any, before: Collection[str]) -> None:
    """Appends the nodes, functions and ops of `extended` that meta_graph lacks; before: names of meta_graph's nodes."""
    functions = {function.signature.name for function in meta_graph.graph_def.library.function}
    for node in extended.graph_def.node:
        if node.name not in before:
            meta_graph.graph_def.node.add().MergeFromString(node.SerializeToString())
    for function in extended.graph_def.library.function:
        if function.signature.name not in functions:
            meta_graph.graph_def.library.function.add().MergeFromString(function.SerializeToString())
    known = {op.name for op in meta_graph.meta_info_def.stripped_op_list.op}
    for op in extended.meta_info_def.stripped_op_list.op:
        if op.name not in known:
            meta_graph.meta_info_def.stripped_op_list.op.add().MergeFromString(op.SerializeToString())
