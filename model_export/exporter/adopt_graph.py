"""Lookup signatures added to a SavedModel that is not ours: new nodes beside its graph, which is not touched.

The nodes read the model's own variables. They and their SignatureDefs go into saved_model.pb, where TensorFlow Serving
and our server find signatures; `tf.saved_model.load(...).signatures` of TensorFlow 2 looks elsewhere and does not show
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.lookup_graph import build_lookup
from model_export.exporter.signature_runner import SERVE, quiet_loader, read_saved_model
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.core.manifest import SignatureEntry
from service.core.types import Array
from service.lookup.bundle import BundleEntry

# Rows compared at a time, so that no second copy of a table is made.
_CHUNK_ROWS = 65536


def add_lookups(
    artifact: Path,
    spec: ModelSpec,
    lookups: Mapping[str, SignatureEntry],
    tables: Mapping[str, Sequence[BundleEntry]],
) -> None:
    """Rewrites artifact/saved_model.pb with the lookups added.

    Args:
      tables: table of the spec -> its saved parts by rows in order (one part where it is whole).

    Raises:
      ExportError: a signature of that name exists, or no variable of the graph holds the numbers of a table.
    """
    saved_model = read_saved_model(artifact)
    (meta_graph,) = [g for g in saved_model.meta_graphs if set(g.meta_info_def.tags) == set(SERVE)]
    if taken := sorted(set(lookups) & set(meta_graph.signature_def)):
        raise ExportError(f"{artifact} has signatures {taken} already; [signatures.{taken[0]}] in the spec maps one")
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        with quiet_loader():
            tf.compat.v1.saved_model.load(session, list(SERVE), str(artifact))
        before = {node.name for node in session.graph.as_graph_def().node}
        variables = list(_variables(session.graph))
        parts = {name: [_holding(session, variables, p, name) for p in several] for name, several in tables.items()}
        whole = {name: several[0] if len(several) == 1 else several for name, several in parts.items()}
        definitions = {name: build_lookup(entry, spec, whole).signature_def(name) for name, entry in lookups.items()}
        extended = tf.compat.v1.train.export_meta_graph(graph=session.graph, clear_extraneous_savers=True)
    _append(meta_graph, extended, before)
    for name, definition in definitions.items():
        meta_graph.signature_def[name].MergeFromString(definition.SerializeToString())
    (artifact / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    # It was of the file before.
    (artifact / "fingerprint.pb").unlink(missing_ok=True)


def saved_rows(entry: BundleEntry, start: int, stop: int) -> Array:
    """Returns rows start to stop of a saved matrix."""
    row_bytes = entry.nbytes // entry.shape[0]
    with entry.file.open("rb") as file:
        file.seek(entry.offset + start * row_bytes)
        return np.frombuffer(file.read((stop - start) * row_bytes), entry.dtype).reshape(stop - start, entry.shape[1])


def _variables(graph: Any) -> Iterator[tuple[Any, tuple[int, ...]]]:
    # (tensor of the value, shape) of every matrix of float32 that the graph holds, reference and resource variables.
    for operation in list(graph.get_operations()):
        is_handle = operation.type == "VarHandleOp"
        if not is_handle and operation.type not in ("VariableV2", "Variable"):
            continue
        shape = tf.TensorShape(operation.get_attr("shape"))
        if operation.get_attr("dtype") != tf.float32 or shape.rank != 2 or not shape.is_fully_defined():
            continue
        handle = operation.outputs[0]
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) if is_handle else tf.identity(handle)
        yield tf.ensure_shape(value, shape), tuple(shape.as_list())


def _holding(session: Any, variables: Sequence[tuple[Any, tuple[int, ...]]], part: BundleEntry, table: str) -> Any:
    # By content: names of the checkpoint, of the object graph and of the nodes need not be alike.
    for value, shape in variables:
        if shape == part.shape and _is_equal(session, value, part):
            return value
    shapes = sorted({shape for _, shape in variables})
    raise ExportError(
        f"table {table!r}: no variable of the graph holds its numbers, so no lookup can be added; the graph has "
        f"matrices of shapes {shapes}"
    )


def _is_equal(session: Any, value: Any, part: BundleEntry) -> bool:
    bounds = tf.compat.v1.placeholder(tf.int32, [2])
    rows = value[bounds[0] : bounds[1]]
    for start in range(0, part.shape[0], _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, part.shape[0])
        if session.run(rows, {bounds: [start, stop]}).tobytes() != saved_rows(part, start, stop).tobytes():
            return False
    return True


def _append(meta_graph: Any, extended: Any, before: set[str]) -> None:
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
