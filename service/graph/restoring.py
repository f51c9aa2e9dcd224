"""Finds the checkpoint tensor of each variable of a graph, and adds nodes that restore chosen variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from service.errors import ArtifactError
from service.graph.constants import add_strings, constant_of
from service.graph.flat_graph import FlatGraph, canonical, flatten, node_of

_ASSIGNS = frozenset({"AssignVariableOp", "Assign"})
_PASS_ON = frozenset({"Identity"})
_HANDLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})


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
    for node in flat.nodes.values():
        if node.op in _ASSIGNS:
            handle = node_of(_source(flat, node.input[0]))
            saved = _saved(flat, node)
            if saved is not None and flat.nodes[handle].op in _HANDLES:
                found[handle] = saved
    return found


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
    """Returns the saved tensors by variable, and the variables that the roots need; None if that is all or not known.

    Args:
      roots: names of tensors and ops that will be run.
    """
    try:
        saved = saved_tensors(meta_graph)
        nodes = flatten(meta_graph.graph_def, roots).nodes.values()
    except (ArtifactError, KeyError):
        return None
    # A variable may be read by a node whose result nobody uses: TensorFlow runs stateful ops of functions all the same.
    read = {node_of(given) for node in nodes for given in node.input}
    needed = sorted(read & saved.keys())
    return None if len(needed) == len(saved) else (saved, needed)


def signature_tensors(meta_graph: Any) -> list[str]:
    found, todo = [], [info for one in meta_graph.signature_def.values() for info in one.outputs.values()]
    while todo:
        info = todo.pop()
        kind = info.WhichOneof("encoding")
        if kind == "name":
            found.append(str(info.name))
        elif kind == "coo_sparse":
            sparse = info.coo_sparse
            found += [sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
        elif kind == "composite_tensor":
            todo += info.composite_tensor.components
    return found


def _saved(flat: FlatGraph, assign: Any) -> Saved | None:
    value = _source(flat, assign.input[1])
    restore = flat.nodes[node_of(value)]
    if restore.op != "RestoreV2":
        return None
    number = int(value.partition(":")[2])
    keys, parts = (_strings(flat.nodes[node_of(_source(flat, i))]) for i in restore.input[1:3])
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
