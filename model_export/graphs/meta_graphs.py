"""Adds MetaGraphs to SavedModels over the same `variables/` folder; reads and sets the initialiser of a graph."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
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
    file = folder / "saved_model.pb"
    if not file.is_file():
        raise ExportError(f"{folder} is no SavedModel: it has no saved_model.pb")
    saved_model = _saved_model_class().FromString(file.read_bytes())
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


def _saved_model_class() -> Any:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel


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
    return Counter(_shapes(meta_graph.graph_def.node))


def _shapes(nodes: Any) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if node.op == "VarHandleOp":
            shape = tf.TensorShape(node.attr["shape"].shape)
            yield (
                node.attr["shared_name"].s.decode() or node.name,
                f"{tf.as_dtype(node.attr['dtype'].type).name}{shape}",
            )
