"""Opens the whole graph of a SavedModel as TensorFlow Serving does: in one session, whose tensors have names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from service.artifact.signature_def import tensor_names
from service.errors import ArtifactError
from service.graph.flat_graph import FlatGraph, canonical, flatten, node_of, reachable
from service.graph.graph_session import CoreSession, GraphError, make_program, open_session
from service.graph.restoring import Step, add_echoes, prepared
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.synchronous_ops import are_stateless, may_run_on_one_thread
from service.types import INIT_SIGNATURE, GraphThreads

# Ops that make a resource.
_RESOURCES = frozenset({"VarHandleOp", "HashTableV2", "MutableHashTableV2", "MutableDenseHashTableV2"})
# Ops that a call may only wait for, although nothing reads what they compute.
_NO_EFFECTS = frozenset({"NoOp", "Identity", "VarHandleOp", "ReadVariableOp", "Const", "Placeholder"})
# Attributes of functions, and of nodes that call them.
_KEEPS_CALLS = ("_XlaMustCompile", "_noinline")
_NODE_MARKS = re.compile(r"^(\{\{(function_)?node [^}]*\}\}\s*)+")


@dataclass(frozen=True, slots=True)
class SavedModelBackend:
    """The backend of whole graphs: the signatures of a SavedModel in one TensorFlow session, which the core runs.

    A session serves exports of TensorFlow 1 and 2 alike, which tf.saved_model.load does not.

    session: None where the core can not load TensorFlow's library, so that no request can run the signatures.
    sparse: signature -> name of a sparse input -> the graph's three tensors of it.
    renamed: tensor of an output -> the session's tensor in its place, if it has another name, or is fed.
    calls: nodes that must run with the outputs that they had before function calls were inlined.
    """

    session: CoreSession | None
    sparse: Mapping[str, Mapping[str, SparseNames]]
    renamed: Mapping[str, str] = field(default_factory=dict)
    calls: frozenset[str] = frozenset()

    def fetched(self, outputs: Iterable[str]) -> tuple[list[str], list[str]]:
        names = list(outputs)
        return [self.renamed.get(name, name) for name in names], sorted({node_of(name) for name in names} & self.calls)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def open_savedmodel(
    artifact: Path,
    tags: frozenset[str],
    threads: GraphThreads,
) -> SavedModelBackend:
    """Opens a backend for a SavedModel: loads its graph and restores its variables.

    Args:
      tags: tags of the MetaGraph; a MetaGraph with "tpu" is lowered for this machine's CPU first, in memory.
      threads: if those that run operations side by side are set, and are several, they do.

    Raises:
      ArtifactError: TensorFlow can not load the SavedModel, in TensorFlow's words; or its graph needs a TPU.
    """
    side_by_side = threads.side_by_side not in (None, 1)
    try:
        meta_graph, steps = prepared(artifact, tags)
        flat = None if side_by_side else _Inlined.of(meta_graph, steps)
        graph_def = meta_graph.graph_def if flat is None else flat.graph_def
        echoes = add_echoes(meta_graph, graph_def)
        program = make_program(graph_def, steps, threads, side_by_side=side_by_side)
        session = open_session(program)
    except ArtifactError as error:
        raise ArtifactError(f"{artifact}: {error.message}") from error
    except GraphError as error:
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    sparse = read_sparse_names(meta_graph)
    if flat is None or not program.is_single_threaded:
        return SavedModelBackend(session, sparse, echoes)
    return SavedModelBackend(session, sparse, flat.renamed | echoes, flat.calls)


class _Inlined(NamedTuple):
    """The graph of a SavedModel whose function calls are inlined, so that one thread can run it.

    renamed, calls: as in SavedModelBackend.
    """

    graph_def: Any
    renamed: dict[str, str]
    calls: frozenset[str]

    @classmethod
    def of(cls, meta_graph: Any, steps: Sequence[Step]) -> _Inlined | None:
        """Returns the inlined graph; None if one thread can not run it, or if it would not be the same as the calls."""
        if _has_kept_calls(meta_graph.graph_def):
            return None
        infos = {name: one for name, one in meta_graph.signature_def.items() if name != INIT_SIGNATURE}
        outputs = {name: [*tensor_names(one.outputs.values())] for name, one in infos.items()}
        roots = [*chain.from_iterable(outputs.values()), *(step for step, _ in steps)]
        roots += [tensor for one in infos.values() for tensor in tensor_names(one.inputs.values())]
        roots += [tensor for _, feeds in steps for tensor in feeds]
        try:
            return cls._of(flatten(meta_graph.graph_def, roots), meta_graph.graph_def, outputs)
        except (ArtifactError, KeyError):
            return None

    @classmethod
    def _of(cls, flat: FlatGraph, original: Any, outputs: Mapping[str, Sequence[str]]) -> _Inlined | None:
        top = {node.name: node for node in original.node}
        if any(node.op in _RESOURCES and name not in top for name, node in flat.nodes.items()):
            # A resource has the name of its node: calls of one function share it, and their inlined nodes would not.
            return None
        ends = {node_of(tensor) for tensor in chain.from_iterable(outputs.values())}
        if any(_loses_effects(flat, top, node) for node in ends):
            return None
        calls = frozenset(node for node in ends if _has_effects(flat, node))
        renamed: dict[str, str] = {}
        needed = []
        for tensors in outputs.values():
            for tensor in tensors:
                node, _, number = canonical(tensor).partition(":")
                if node in flat.calls and tensor not in renamed:
                    dtype = top[node].attr["Tout"].list.type[int(number)]
                    renamed[tensor] = flat.pass_on(f"{node}/output_{number}", flat.resolved(tensor), dtype)
            waited = (f"^{node}" for node in calls & {node_of(tensor) for tensor in tensors})
            needed.append(flat.ancestors([*(renamed.get(tensor, tensor) for tensor in tensors), *waited]))
        graph_def = flat.graph_def(original)
        is_pure = all(are_stateless(flat.nodes[node] for node in nodes) for nodes in needed)
        if not is_pure or not may_run_on_one_thread(graph_def):
            return None
        return cls(graph_def, renamed, calls)


def _loses_effects(flat: FlatGraph, top: Mapping[str, Any], output: str) -> bool:
    before = reachable(top, [output]) - {output}
    within = {call for call in flat.calls if call.startswith(f"{output}/")}
    awaited = flat.ancestors([f"^{output}"])
    return any(_has_effects(flat, call) for call in before | (within - awaited))


def _has_effects(flat: FlatGraph, call: str) -> bool:
    """Says whether an inlined call does more than to compute its outputs, such as a check that may refuse a request."""
    return call in flat.calls and any(flat.nodes[name].op not in _NO_EFFECTS for name in flat.ancestors([f"^{call}"]))


def _has_kept_calls(graph_def: Any) -> bool:
    nodes = chain(graph_def.node, *(function.node_def for function in graph_def.library.function))
    marked = chain(nodes, graph_def.library.function)
    # The key is tested first, because reading a missing key of a protobuf map adds the key.
    return any(name in one.attr and one.attr[name].b for one in marked for name in _KEEPS_CALLS)


def _text(error: GraphError) -> str:
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    line = error.message.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]
    return _NODE_MARKS.sub("", line).strip() or f"error {error.code} without a text"
