"""Rewrites the lookup signatures in a saved_model.pb, so that their graphs read tables stored in fewer bits.

Each lookup is built again from its manifest entry (ADR 0007), with its own variables. The rest of the graph stays, with
the trained tables that predictions read; a SavedModel that has only lookups gets a new graph without those tables.

The object graph is left out, since it describes the old lookups, so the SavedModel becomes one of TensorFlow 1.
`tf.saved_model.load` then reads the SignatureDefs, as TensorFlow Serving always does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.graphs.added_lookups import append_nodes
from model_export.graphs.combining import by_xla
from model_export.graphs.lookup_graph import build_lookup
from model_export.graphs.reduced_graph import GraphTable
from model_export.graphs.signature_runner import read_saved_model, read_signature_inputs
from model_export.graphs.tpu_graph import TPU_TAGS, hide_initialiser, initialiser_of, set_initialiser, tpu_call
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry, TableEntry
from service.graph.restoring import saved_tensors
from service.types import packed_dim, saved_dtype, stored_columns

_SCOPE = "reduced"


def rewrite_lookups(artifact: Path, manifest: Manifest, rebuilt: Mapping[str, Any], *, is_alone: bool) -> None:
    """Builds the lookup signatures in artifact/saved_model.pb again, so that they read the tables in the manifest.

    Args:
      manifest: describes the tables that the checkpoint holds now.
      rebuilt: name -> manifest entry of the lookups to build again; is_alone: whether the artifact has no other
          signatures.

    Raises:
      ExportError: a table's variable is not in the graph.
    """
    saved_model = read_saved_model(artifact)
    inputs = read_signature_inputs(artifact)
    specs = {
        name: lookup_spec(artifact, manifest, entry, {f: inputs[name][e.ids].dtype for f, e in entry.features.items()})
        for name, entry in rebuilt.items()
    }
    for meta_graph in saved_model.meta_graphs:
        meta_graph.ClearField("object_graph_def")
        hide_initialiser(meta_graph)
        present = {name: entry for name, entry in rebuilt.items() if name in meta_graph.signature_def}
        if present:
            _rewrite(artifact, meta_graph, manifest, present, specs, is_alone=is_alone)
    (artifact / "saved_model.pb").write_bytes(saved_model.SerializeToString())


class _Vocabulary:
    """A vocabulary's lookup table in the graph. init: the operation that fills the table from its asset file."""

    def __init__(self, asset: Any, content: bytes) -> None:
        # The lookup table's shared name is a hash of its content, because tf.saved_model.load shares lookup tables of
        # the same name within a process.
        shared = f"vocabulary_{hashlib.sha256(content).hexdigest()[:16]}"
        self._handle = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=shared)
        whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        self.init = tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=self._handle, filename=asset, key_index=whole_line, value_index=line_number
        )

    def lookup(self, keys: Any) -> Any:
        missing = tf.constant(-1, tf.int64)
        lines = tf.raw_ops.LookupTableFindV2(table_handle=self._handle, keys=keys, default_value=missing)
        return tf.ensure_shape(lines, keys.shape)


def _rewrite(
    artifact: Path,
    meta_graph: Any,
    manifest: Manifest,
    entries: Mapping[str, Any],
    specs: Mapping[str, ModelSpec],
    *,
    is_alone: bool,
) -> None:
    v1 = tf.compat.v1
    old = v1.MetaGraphDef.FromString(meta_graph.SerializeToString())
    on_tpu = set(meta_graph.meta_info_def.tags) == set(TPU_TAGS)
    compiled = (lambda combine: partial(tpu_call, combine)) if on_tpu else by_xla
    with tf.Graph().as_default() as graph:
        if not is_alone:
            tf.import_graph_def(old.graph_def, name="")
        before = {node.name for node in graph.as_graph_def().node}
        variables = _Variables(manifest, {} if is_alone else _handles(old))
        assets = {} if is_alone else {asset.filename: asset.tensor_info.name for asset in old.asset_file_def}
        vocabularies = _Vocabularies(artifact, manifest, assets)
        definitions = {}
        for name, entry in entries.items():
            spec = specs[name]
            tables = {table.name: variables.table(table.name) for table in spec.tables}
            keyed = {f.name: vocabularies.table(f.name) for f in spec.features if f.vocabulary and not f.sends_rows}
            built = build_lookup(entry, spec, tables, keyed, compiled=compiled)
            definitions[name] = built.signature_def(name)
        saver = variables.saver(None if is_alone else old.saver_def)
        init = vocabularies.init("" if is_alone else initialiser_of(old))
        extended = v1.train.export_meta_graph(graph=graph, clear_extraneous_savers=True)
    if is_alone:
        info = old.meta_info_def
        meta_graph.Clear()
        meta_graph.MergeFromString(extended.SerializeToString())
        meta_graph.meta_info_def.tags[:] = info.tags
        meta_graph.ClearField("collection_def")
    else:
        append_nodes(meta_graph, extended, before)
    meta_graph.ClearField("saver_def")
    meta_graph.saver_def.MergeFromString(saver.SerializeToString())
    for filename, tensor in vocabularies.added.items():
        meta_graph.asset_file_def.add(filename=filename).tensor_info.name = tensor
    if init:
        set_initialiser(meta_graph, init)
    for name, definition in definitions.items():
        meta_graph.signature_def[name].Clear()
        meta_graph.signature_def[name].MergeFromString(definition.SerializeToString())


class _Variables:
    """The tables that lookups in the current graph read: variables that the graph has already, or new ones.

    Args:
      present: checkpoint key -> handles of the graph's own variable, one for each part, in the order of rows.
    """

    def __init__(self, manifest: Manifest, present: Mapping[str, list[Any]]) -> None:
        self._manifest, self._present = manifest, present
        self._new: dict[str, tuple[Any, Any]] = {}
        self._tables: dict[str, Any] = {}

    def table(self, name: str) -> Any:
        """Returns a table in a form that build_lookup takes: a variable, a list of its parts, or a GraphTable."""
        if name not in self._tables:
            entry = self._manifest.tables[name]
            shape = (entry.vocabulary_size, stored_columns(entry.dtype, entry.embedding_dim))
            numbers = self._values(entry, entry.variable, tf.as_dtype(saved_dtype(entry.dtype)), shape, entry.crc32c)
            if entry.dtype == "float32":
                self._tables[name] = numbers[0] if len(numbers) == 1 else numbers
            else:
                scale, scales = entry.scale, None
                if scale is not None:
                    (scales,) = self._values(entry, scale.variable, tf.float32, (shape[0], 1), scale.crc32c)
                self._tables[name] = GraphTable(numbers[0], scales, packed_dim(entry.dtype, entry.embedding_dim))
        return self._tables[name]

    def saver(self, old: Any) -> Any:
        """Adds operations that restore the added table variables to the graph's saver; returns the new SaverDef."""
        v1 = tf.compat.v1
        definition = v1.train.SaverDef(version=v1.train.SaverDef.V2, max_to_keep=1)
        if old is None:
            prefix = v1.placeholder_with_default("model", [], f"{_SCOPE}/prefix")
            definition.filename_tensor_name = prefix.name
        else:
            definition.CopyFrom(old)
            prefix = v1.get_default_graph().get_tensor_by_name(_tensor(old.filename_tensor_name))
        keys = sorted(self._new)
        handles, dtypes = [self._new[key][0] for key in keys], [self._new[key][1] for key in keys]
        steps = [] if old is None else [v1.get_default_graph().get_operation_by_name(old.restore_op_name)]
        if keys:
            read = tf.raw_ops.RestoreV2(
                prefix=prefix, tensor_names=keys, shape_and_slices=[""] * len(keys), dtypes=dtypes
            )
            steps += [
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                for handle, value in zip(handles, read, strict=True)
            ]
        definition.restore_op_name = tf.group(*steps, name=f"{_SCOPE}/restore_all").name
        if old is None:
            values = [tf.raw_ops.ReadVariableOp(resource=h, dtype=d) for h, d in zip(handles, dtypes, strict=True)]
            save = tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=keys, shape_and_slices=[""] * len(keys), tensors=values
            )
            with tf.control_dependencies([save]):
                definition.save_tensor_name = tf.identity(prefix, f"{_SCOPE}/saved").name
        return definition

    def _values(self, entry: TableEntry, key: str, dtype: Any, shape: tuple[int, int], crc32c: int) -> list[Any]:
        handles = self._present.get(key)
        if handles is None:
            # The variable's shared name holds its checksum, because tf.saved_model.load shares variables of the same
            # name within a process.
            shared = f"{_SCOPE}/{key}/{crc32c:08x}"
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=shared, name=_node_name(key))
            self._new[key] = (handle, dtype)
            handles = [handle]
        values = []
        for handle in handles:
            is_handle = handle.dtype == tf.resource
            values.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) if is_handle else tf.identity(handle))
        if len(values) == 1:
            values = [tf.ensure_shape(values[0], shape)]
        return values


class _Vocabularies:
    """The vocabularies that lookups in the current graph read, from the graph's asset files or from added ones.

    added: file below assets/ -> the string tensor to which a loader feeds the file's path.
    """

    def __init__(self, artifact: Path, manifest: Manifest, present: Mapping[str, str]) -> None:
        self._artifact, self._manifest, self._present = artifact, manifest, present
        self._tables: dict[str, _Vocabulary] = {}
        self.added: dict[str, str] = {}

    def table(self, feature: str) -> _Vocabulary:
        file = Path(self._manifest.vocabularies[self._manifest.features[feature].vocabulary or ""].file)
        if file.name not in self._tables:
            if file.parent != Path("assets"):
                raise ExportError(f"vocabulary {file} is no asset, so no graph can read it")
            graph = tf.compat.v1.get_default_graph()
            if file.name in self._present:
                asset = graph.get_tensor_by_name(_tensor(self._present[file.name]))
            else:
                asset = tf.constant(file.name, name=f"{_SCOPE}/{_node_name(file.name)}_path")
                self.added[file.name] = asset.name
            self._tables[file.name] = _Vocabulary(asset, (self._artifact / file).read_bytes())
        return self._tables[file.name]

    def init(self, old: str) -> str:
        """Adds an op that runs the initialiser `old` and fills vocabularies; returns its name, or `old` without
        vocabularies.
        """
        if not self._tables:
            return old
        graph = tf.compat.v1.get_default_graph()
        steps = [graph.get_operation_by_name(old)] if old else []
        filled = tf.group(*steps, *(table.init for table in self._tables.values()), name=f"{_SCOPE}/init")
        return str(filled.name)


def _handles(meta_graph: Any) -> dict[str, list[Any]]:
    graph = tf.compat.v1.get_default_graph()
    found: dict[str, list[tuple[int, Any]]] = {}
    for node, saved in saved_tensors(meta_graph).items():
        # The shape_and_slices text is empty for a whole variable; for a part it is "rows columns
        # first,count:first,count".
        start = int(saved.part.split()[-1].partition(",")[0]) if saved.part else 0
        found.setdefault(saved.key, []).append((start, graph.get_tensor_by_name(f"{node}:0")))
    return {key: [handle for _, handle in sorted(parts, key=lambda part: part[0])] for key, parts in found.items()}


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _node_name(text: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in text).strip("_") or "variable"


def lookup_spec(artifact: Path, manifest: Manifest, entry: SignatureEntry, id_dtypes: Mapping[str, str]) -> ModelSpec:
    """Returns the tables and features that a manifest's lookup reads, as a ModelSpec.

    Args:
      id_dtypes: feature -> dtype of its ids input; it decides whether clients send keys or rows.

    Raises:
      ExportError: a feature is not one that the exporter could have written.
    """
    try:
        features = tuple(
            _feature(artifact, manifest, name, lookup, id_dtypes[name]) for name, lookup in entry.features.items()
        )
        used = dict.fromkeys(feature.table for feature in features)
        tables = tuple(
            TableSpec(name, manifest.tables[name].vocabulary_size, manifest.tables[name].embedding_dim) for name in used
        )
        return ModelSpec(tables, features)
    except (ValueError, OSError) as error:
        raise ExportError(f"its lookups can not be built again: {error}") from error


def _feature(artifact: Path, manifest: Manifest, name: str, lookup: LookupFeature, id_dtype: str) -> FeatureSpec:
    vocabulary = _vocabulary(artifact, manifest, name)
    length = lookup.max_sequence_length or 0
    return FeatureSpec(
        name,
        manifest.features[name].table,
        is_ragged=lookup.row_splits is not None,
        max_ids_per_row=length or lookup.max_ids_per_row or 1,
        combiner=lookup.combiner,
        max_sequence_length=length,
        vocabulary=vocabulary,
        sends_rows=vocabulary is not None and vocabulary.key_dtype == "string" and id_dtype != "string",
        default_id=lookup.default_row,
        on_bad_id=lookup.on_bad_id,
        on_nonpositive_weight=lookup.on_nonpositive_weight,
        on_too_many_ids=lookup.on_too_many_ids,
    )


def _vocabulary(artifact: Path, manifest: Manifest, feature: str) -> VocabularySpec | None:
    name = manifest.features[feature].vocabulary
    if name is None:
        return None
    entry = manifest.vocabularies[name]
    lines = [line.decode() for line in vocabulary_lines(artifact / entry.file)]
    keys = tuple(lines) if entry.key_dtype == "string" else tuple(int(line) for line in lines)
    return VocabularySpec(keys, entry.first_id, entry.oov_id, entry.num_oov_buckets, entry.on_oov)
