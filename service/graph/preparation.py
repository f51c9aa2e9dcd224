"""Lists the operations that prepare the session of a SavedModel: restore its variables, fill its vocabularies.

Source: tensorflow/cc/saved_model/loader.cc and loader_util.cc, RunRestore, GetInitOp, GetAssetFileDefs (2.21).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.artifact.protos import message_class
from service.graph.flat_graph import node_of
from service.types import INIT_SIGNATURE

Step = tuple[str, Mapping[str, bytes]]


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
