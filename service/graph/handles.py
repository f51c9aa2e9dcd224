"""Repairs variable handles of a graph, so that every read uses a variable that the SavedModel restores.

tf.saved_model.save of a Keras 3 model writes two handles for each variable: the functions read one, and the checkpoint
restores the other. tf.saved_model.load knows from the object graph that both are one variable. A TensorFlow session,
such as TensorFlow Serving's, does not, and fails with "Could not find variable".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.artifact.bundle import read_string
from service.artifact.protos import message_class
from service.graph.flat_graph import node_of
from service.graph.restoring import saved_tensors


def repair_handles(meta_graph: Any, artifact: Path) -> int:
    """Replaces, in place, variable handles that no checkpoint restores by restored handles of the same variables.

    Args:
      meta_graph: a MetaGraphDef.
      artifact: the folder that it was read from.

    Returns:
      How many handles were replaced.
    """
    saved = saved_tensors(meta_graph)
    handles = {node.name for node in meta_graph.graph_def.node if node.op == "VarHandleOp"}
    lost = handles - saved.keys()
    captured = [(handle, node) for handle, node in _captured(meta_graph) if handle in lost]
    if not captured:
        return 0
    keys = object_keys(artifact)
    restored = {entry.key: handle for handle, entry in saved.items()}
    replaced = {handle: restored[keys[node]] for handle, node in captured if keys.get(node) in restored}
    for node in meta_graph.graph_def.node:
        for number, reference in enumerate(node.input):
            if node_of(reference) in replaced and not reference.startswith("^"):
                node.input[number] = replaced[node_of(reference)]
    return len(replaced)


def _captured(meta_graph: Any) -> Iterator[tuple[str, int]]:
    """Yields each tensor that a function of the SavedModel captures, with its object's number in the object graph."""
    functions: Mapping[str, Any] = meta_graph.object_graph_def.concrete_functions
    for node in meta_graph.graph_def.node:
        name = node.attr["f"].func.name if "f" in node.attr else ""
        # The key is tested first, because reading a missing key of a protobuf map adds the key.
        if name not in functions:
            continue
        bound = list(functions[name].bound_inputs)
        given = [node_of(reference) for reference in node.input if not reference.startswith("^")]
        if bound:
            yield from zip(given[-len(bound) :], bound, strict=False)


def variable_names(meta_graph: Any, artifact: Path) -> dict[str, str]:
    """Returns variable's key in the checkpoint -> the variable's name in the Python program that exported it.

    Empty for exports of TensorFlow 1.
    """
    nodes = meta_graph.object_graph_def.nodes
    return {key: nodes[number].variable.name for number, key in object_keys(artifact).items()} if nodes else {}


def object_keys(artifact: Path) -> dict[int, str]:
    """Returns number of a node in the object graph -> the checkpoint key of the node's variable.

    The checkpoint numbers its objects as the SavedModel does.

    Source: tensorflow/python/saved_model/load.py, Loader._restore_checkpoint (2.21).
    """
    data = read_string(artifact / "variables" / "variables", "_CHECKPOINTABLE_OBJECT_GRAPH")
    objects = message_class("tensorflow.TrackableObjectGraph").FromString(data)
    return {
        number: attribute.checkpoint_key
        for number, node in enumerate(objects.nodes)
        for attribute in node.attributes
        if attribute.name == "VARIABLE_VALUE"
    }
