"""Prepares the session of a SavedModel: finds the checkpoint tensor of each variable, restores it, fills vocabularies.

Repairs variable handles of a graph, so that every read uses a variable that the SavedModel restores.

tf.saved_model.save of a Keras 3 model writes two handles for each variable: the functions read one, and the checkpoint
restores the other. tf.saved_model.load knows from the object graph that both are one variable. A TensorFlow session,
such as TensorFlow Serving's, does not, and fails with "Could not find variable".

Reads a SavedModel's graph, and lists the operations that prepare its session: restore variables, fill vocabularies.

Source: tensorflow/cc/saved_model/loader.cc and loader_util.cc, RunRestore, GetInitOp, GetAssetFileDefs (2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from service.artifact.bundle import read_string
from service.artifact.protos import message_class
from service.artifact.signature_def import asset_files, read_meta_graph, tensor_names
from service.artifact.tpu_lowering import TPU_TAG, lower
from service.errors import ArtifactError
from service.graph.flat_graph import FlatGraph, add_strings, canonical, constant_of, flatten, node_of
from service.types import INIT_SIGNATURE

_ASSIGNS = frozenset({"AssignVariableOp", "Assign"})
_PASS_ON = frozenset({"Identity"})
_HANDLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})
# Ops without inputs that keep no state.
_PLAIN_SOURCES = frozenset({"Const", "NoOp", "Placeholder", "PlaceholderWithDefault"})


class Saved(NamedTuple):
    """The checkpoint tensor of a variable: its key, slice and dtype, and the graph's node that assigns it."""

    key: str
    part: str
    dtype: int
    assign: Any


def saved_tensors(meta_graph: Any) -> dict[str, Saved]:
    """Returns name of a variable's node -> the checkpoint tensor that is restored to it; raises ArtifactError."""
    saver = meta_graph.saver_def
    if not saver.restore_op_name:
        return {}
    flat = flatten(meta_graph.graph_def, [saver.restore_op_name])
    found = {}
    # All variables name their keys by one constant.
    strings = cache(lambda name: _strings(flat.nodes[name]))
    for node in flat.nodes.values():
        if node.op in _ASSIGNS:
            handle = node_of(_source(flat, node.input[0]))
            saved = _saved(flat, node, strings)
            if saved is not None and flat.nodes[handle].op in _HANDLES:
                found[handle] = saved
    return found


def restored_otherwise(meta_graph: Any) -> frozenset[str]:
    """Returns the nodes whose state the restore op sets in another way than by assigning a tensor of the checkpoint.

    A mutable hash table is one, to which the restore op imports keys and values.
    """
    saver = meta_graph.saver_def
    if not saver.restore_op_name:
        return frozenset()
    flat = flatten(meta_graph.graph_def, [saver.restore_op_name])
    found = {name for name, node in flat.nodes.items() if node.op not in _PLAIN_SOURCES and not flat.data_inputs(name)}
    # A table may have inputs itself, such as the key of its empty places.
    imports = [node for node in flat.nodes.values() if node.op.startswith("LookupTableImport")]
    found.update(node_of(_source(flat, node.input[0])) for node in imports)
    return frozenset(found - saved_tensors(meta_graph).keys())


def add_restore(graph_def: Any, saved: Mapping[str, Saved], variables: Iterable[str], prefix: str) -> str:
    """Adds nodes to a graph that restore only the given variables; returns the name of the node that runs the restore.

    Args:
      prefix: path of the checkpoint without ".index".

    Raises:
      ArtifactError: the graph's restore op does not restore one of the variables.
    """
    chosen = sorted(variables)
    if unknown := [name for name in chosen if name not in saved]:
        raise ArtifactError(f"nothing restores variable {unknown[0]!r}")
    done = graph_def.node.add(name="tower/restored", op="NoOp")
    if not chosen:
        return str(done.name)
    entries = [saved[name] for name in chosen]
    add_strings(graph_def, "tower/prefix", [prefix], is_scalar=True)
    add_strings(graph_def, "tower/keys", [entry.key for entry in entries])
    add_strings(graph_def, "tower/parts", [entry.part for entry in entries])
    restore = graph_def.node.add(name="tower/restore", op="RestoreV2")
    restore.input.extend(["tower/prefix:0", "tower/keys:0", "tower/parts:0"])
    restore.attr["dtypes"].list.type.extend(entry.dtype for entry in entries)
    for number, (variable, entry) in enumerate(zip(chosen, entries, strict=True)):
        assign = graph_def.node.add()
        assign.CopyFrom(entry.assign)
        assign.name = f"tower/assign_{number}"
        del assign.input[:]
        assign.input.extend([variable + ":0", f"tower/restore:{number}"])
        done.input.append("^" + assign.name)
    return str(done.name)


def needed_variables(meta_graph: Any, roots: Iterable[str]) -> tuple[dict[str, Saved], list[str]] | None:
    """Returns the saved tensors by variable, and the variables that the roots need; None if that is all or not known,
    or if they also need a state that is no variable.
    """
    try:
        saved, kept = saved_tensors(meta_graph), restored_otherwise(meta_graph)
        nodes = flatten(meta_graph.graph_def, roots).nodes.values()
    except (ArtifactError, KeyError):
        return None
    # A variable may be read by a node whose result nobody uses: TensorFlow runs stateful ops of functions all the same.
    read = {node_of(given) for node in nodes for given in node.input}
    if read & kept:
        return None
    needed = sorted(read & saved.keys())
    return None if len(needed) == len(saved) else (saved, needed)


def _saved(flat: FlatGraph, assign: Any, strings: Callable[[str], list[str] | None]) -> Saved | None:
    value = _source(flat, assign.input[1])
    restore = flat.nodes[node_of(value)]
    if restore.op != "RestoreV2":
        return None
    number = int(value.partition(":")[2])
    keys, parts = (strings(node_of(_source(flat, i))) for i in restore.input[1:3])
    if keys is None or parts is None:
        return None
    kept = type(assign)()
    kept.CopyFrom(assign)
    kept.attr.pop("_class", None)
    return Saved(keys[number], parts[number], restore.attr["dtypes"].list.type[number], kept)


def _source(flat: FlatGraph, tensor: str) -> str:
    tensor = canonical(tensor)
    while flat.nodes[node_of(tensor)].op in _PASS_ON:
        tensor = flat.data_inputs(node_of(tensor))[0]
    return tensor


def _strings(node: Any) -> list[str] | None:
    if node.op != "Const":
        return None
    return [value.decode() for value in constant_of(node).reshape(-1).tolist()]


def repair_handles(meta_graph: Any, artifact: Path) -> int:
    """Replaces, in place, variable handles that no checkpoint restores by restored handles of the same variables.

    TensorFlow finds a variable by the shared name of its handle, or as an object that a function captures.

    Returns:
      How many captured handles were replaced, which a session does not restore.
    """
    saved = saved_tensors(meta_graph)
    handles = {node.name: shared_name(node) for node in meta_graph.graph_def.node if node.op == "VarHandleOp"}
    lost = handles.keys() - saved.keys()
    captured = [(handle, node) for handle, node in _captured(meta_graph) if handle in lost]
    keys = object_keys(artifact) if captured else {}
    restored = {entry.key: handle for handle, entry in saved.items()}
    found = {handle: restored[keys[node]] for handle, node in captured if keys.get(node) in restored}
    of_name = {handles[handle]: handle for handle in handles.keys() & saved.keys()}
    replaced = {handle: of_name[handles[handle]] for handle in lost if handles[handle] in of_name} | found
    for node in meta_graph.graph_def.node if replaced else ():
        for number, reference in enumerate(node.input):
            if node_of(reference) in replaced and not reference.startswith("^"):
                node.input[number] = replaced[node_of(reference)]
    return len(found)


def shared_name(node: Any) -> str:
    """Returns the name by which TensorFlow finds a node's resource: nodes of one name have one resource."""
    return (node.attr["shared_name"].s.decode() if "shared_name" in node.attr else "") or str(node.name)


def _captured(meta_graph: Any) -> Iterator[tuple[str, int]]:
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


Step = tuple[str, Mapping[str, bytes]]


def add_echoes(meta_graph: Any, graph_def: Any) -> dict[str, str]:
    """Adds a node for each output that is an input of its signature, as TensorFlow does not fetch what is fed.

    Returns tensor of the output -> the node's tensor.
    """
    found: dict[str, str] = {}
    for signature in meta_graph.signature_def.values():
        fed = {canonical(tensor) for tensor in tensor_names(signature.inputs.values())}
        for info in signature.outputs.values():
            if info.name and info.name not in found and canonical(info.name) in fed:
                echo = graph_def.node.add(name=f"whole/echo_{len(found)}", op="Identity", input=[canonical(info.name)])
                echo.attr["T"].type = info.dtype
                found[info.name] = f"{echo.name}:0"
    return found


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
    outputs = [info for one in meta_graph.signature_def.values() for info in one.outputs.values()]
    needed = needed_variables(meta_graph, [*tensor_names(outputs), *([init] if init else [])])
    if needed is None:
        steps = restore_steps(meta_graph, artifact)
    else:
        saved, variables = needed
        steps = [(add_restore(meta_graph.graph_def, saved, variables, checkpoint_prefix(artifact)), {})]
    return meta_graph, steps + ([(init, asset_paths(meta_graph, artifact))] if init else [])


def restore_steps(meta_graph: Any, artifact: Path) -> list[Step]:
    saver = meta_graph.saver_def
    if not saver.restore_op_name:
        return []
    return [(saver.restore_op_name, {saver.filename_tensor_name: checkpoint_prefix(artifact).encode()})]


def checkpoint_prefix(artifact: Path) -> str:
    return str(artifact / "variables" / "variables")


def init_op(meta_graph: Any) -> str:
    # Reading a missing key of a protobuf map adds the key, so the key is tested first.
    if INIT_SIGNATURE in meta_graph.signature_def:
        return node_of(meta_graph.signature_def[INIT_SIGNATURE].outputs[INIT_SIGNATURE].name)
    for key in ("saved_model_main_op", "legacy_init_op"):
        if key in meta_graph.collection_def and meta_graph.collection_def[key].node_list.value:
            return node_of(meta_graph.collection_def[key].node_list.value[0])
    return ""


def asset_paths(meta_graph: Any, artifact: Path) -> dict[str, bytes]:
    folder = artifact / "assets"
    return {asset.tensor_info.name: str(folder / asset.filename).encode() for asset in asset_files(meta_graph)}
