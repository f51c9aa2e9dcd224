"""Reads a SavedModel's graph, and lists the operations that prepare its session: restore variables, fill vocabularies.

Source: tensorflow/cc/saved_model/loader.cc and loader_util.cc, RunRestore, GetInitOp, GetAssetFileDefs (2.21).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.artifact.protos import message_class
from service.artifact.signature_def import read_meta_graph
from service.artifact.tpu_lowering import TPU_TAG, lower
from service.graph.flat_graph import node_of
from service.graph.handles import repair_handles
from service.graph.restoring import add_restore, needed_variables, signature_tensors
from service.types import INIT_SIGNATURE

Step = tuple[str, Mapping[str, bytes]]


def prepared(artifact: Path, tags: frozenset[str]) -> tuple[Any, list[Step]]:
    """Reads the MetaGraph of a SavedModel with the given tags; returns it for a CPU, and the steps of its session.

    One tagged "tpu" is lowered. Only variables that a signature or the init node reads are restored: a SavedModel of
    Keras 3 holds a second copy of each variable, and one of tf_keras the optimizer's variables.

    Raises:
      ArtifactError: the graph can not be read, or needs a TPU.
    """
    meta_graph = read_meta_graph(artifact / "saved_model.pb", tags)
    if TPU_TAG in tags:
        lower(meta_graph)
    repair_handles(meta_graph, artifact)
    init = init_op(meta_graph)
    needed = needed_variables(meta_graph, [*signature_tensors(meta_graph), *([init] if init else [])])
    if needed is None:
        steps = restore_steps(meta_graph, artifact)
    else:
        saved, variables = needed
        steps = [(add_restore(meta_graph.graph_def, saved, variables, checkpoint_prefix(artifact)), {})]
    return meta_graph, steps + ([(init, asset_paths(meta_graph, artifact))] if init else [])


def restore_steps(meta_graph: Any, artifact: Path) -> list[Step]:
    """Returns the step that restores all variables of a MetaGraphDef; none if the graph has no variables."""
    saver = meta_graph.saver_def
    if not saver.restore_op_name:
        return []
    return [(saver.restore_op_name, {saver.filename_tensor_name: checkpoint_prefix(artifact).encode()})]


def checkpoint_prefix(artifact: Path) -> str:
    """Returns the path of a SavedModel's checkpoint without ".index"."""
    return str(artifact / "variables" / "variables")


def init_op(meta_graph: Any) -> str:
    """Returns the name of the init node, which fills the graph's vocabularies; "" if the graph has none."""
    # Reading a missing key of a protobuf map adds the key, so the key is tested first.
    if INIT_SIGNATURE in meta_graph.signature_def:
        return node_of(meta_graph.signature_def[INIT_SIGNATURE].outputs[INIT_SIGNATURE].name)
    for key in ("saved_model_main_op", "legacy_init_op"):
        if key in meta_graph.collection_def and meta_graph.collection_def[key].node_list.value:
            return node_of(meta_graph.collection_def[key].node_list.value[0])
    return ""


def asset_paths(meta_graph: Any, artifact: Path) -> dict[str, bytes]:
    """Returns, for each tensor to which the init node is fed an asset, the path of the asset's file."""
    assets = list(meta_graph.asset_file_def)
    if not assets and "saved_model_assets" in meta_graph.collection_def:
        packed = meta_graph.collection_def["saved_model_assets"].any_list.value
        assets = [message_class("tensorflow.AssetFileDef").FromString(each.value) for each in packed]
    return {asset.tensor_info.name: str(artifact / "assets" / asset.filename).encode() for asset in assets}
