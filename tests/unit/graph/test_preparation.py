"""The steps that prepare a session are found wherever TensorFlow 1 and 2 store them, as its own loader finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.graph.restoring import asset_paths, init_op, restore_steps

pytestmark = pytest.mark.tf


@pytest.fixture(params=["signature", "saved_model_main_op", "legacy_init_op", "none"])
def meta_graph(tf: Any, request: pytest.FixtureRequest) -> Any:
    """A MetaGraphDef whose init node "init" is stored in one of the places, with an asset."""
    message = tf.compat.v1.MetaGraphDef()
    if request.param == "signature":
        message.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = "init"
    elif request.param != "none":
        message.collection_def[request.param].node_list.value.append("init")
    message.graph_def.node.add(name="init", op="NoOp")
    asset = message.asset_file_def.add(filename="words.txt") if request.param == "signature" else None
    if asset is None:
        from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

        packed = AssetFileDef(filename="words.txt")
        packed.tensor_info.name = "asset:0"
        message.collection_def["saved_model_assets"].any_list.value.add().Pack(packed)
    else:
        asset.tensor_info.name = "asset:0"
    return message


def test_init_node_and_assets_are_those_of_tensorflows_loader(tf: Any, meta_graph: Any) -> None:
    from tensorflow.python.saved_model.loader_impl import get_asset_tensors, get_init_op

    with tf.Graph().as_default():
        tf.import_graph_def(meta_graph.graph_def, name="")
        for key in meta_graph.collection_def.keys() & {"saved_model_main_op", "legacy_init_op"}:
            tf.compat.v1.add_to_collection(key, tf.compat.v1.get_default_graph().get_operation_by_name("init"))
        wanted = get_init_op(meta_graph)
    before = meta_graph.SerializeToString(deterministic=True)
    assert init_op(meta_graph) == ("" if wanted is None else wanted.name)
    assert asset_paths(meta_graph, Path("model")) == get_asset_tensors("model", meta_graph)
    assert meta_graph.SerializeToString(deterministic=True) == before


def test_only_a_graph_with_variables_is_restored(tf: Any) -> None:
    message = tf.compat.v1.MetaGraphDef()
    assert restore_steps(message, Path("model")) == []
    message.saver_def.restore_op_name, message.saver_def.filename_tensor_name = "restore", "file:0"
    assert restore_steps(message, Path("model")) == [("restore", {"file:0": b"model/variables/variables"})]
