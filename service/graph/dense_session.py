"""Opens a TensorFlow session over a dense graph: the rest of a graph without its reads of embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from service.graph.flat_graph import FlatGraph, flatten, node_of
from service.graph.graph_session import (
    GraphProgram,
    GraphSession,
    PythonSession,
    open_session,
    prepare,
    session_config,
)
from service.graph.restoring import Saved, Step, add_restore, asset_paths, checkpoint_prefix, init_op
from service.graph.table_reads import NotProven

# Ops of TensorFlow 1 (control flow, reference variables) that TensorFlow's single-threaded executor can not run.
_NEEDS_THREADS = frozenset({"Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "VariableV2", "Variable"})


class DenseSession(NamedTuple):
    """An open session of a dense graph (without embedding tables). nodes: the names of the graph's nodes."""

    session: GraphSession
    nodes: frozenset[str]


class DenseGraph:
    """The builder of a dense graph: collects the nodes of signatures in a GraphDef without embedding tables.

    Concurrency: one caller at a time.
    """

    def __init__(self, meta_graph: Any, tables: Mapping[str, str]) -> None:
        self._meta_graph = meta_graph
        self._tables = tables
        self._nodes: dict[str, Any] = {}

    def add(
        self,
        flat: FlatGraph,
        needed: set[str],
        placeholders: Mapping[str, int],
        follow: Callable[[str], bool] = bool,
    ) -> None:
        """Adds to the dense graph the nodes that one signature needs.

        Args:
          placeholders: nodes that become placeholders -> DataType number of the fed tensor.
          follow: says whether a control input "^node" is kept.
        """
        for name in needed:
            if name in placeholders:
                node = type(flat.nodes[name])(name=name, op="Placeholder")
                node.attr["dtype"].type = placeholders[name]
                node.attr["shape"].shape.unknown_rank = True
            else:
                node = flat.nodes[name]
                inputs = [i for i in node.input if not i.startswith("^") or (follow(i) and node_of(i) in needed)]
                del node.input[:]
                node.input.extend(inputs)
                # A node's attribute "_class" is removed: it may name a node that is left out, and only matters if a
                # graph is placed on several machines.
                node.attr.pop("_class", None)
            self._nodes.setdefault(name, node)

    def open(self, artifact: Path, saved: Mapping[str, Saved], *, threads: int, inter_op_threads: int) -> DenseSession:
        """Opens a TensorFlow session over the nodes that add() has collected, and restores their variables.

        Raises NotProven if one of the nodes reads an embedding table.
        """
        program = self._program(artifact, saved, threads=threads, inter_op_threads=inter_op_threads)
        return DenseSession(open_session(program), frozenset(self._nodes))

    def open_in_python(self, artifact: Path, saved: Mapping[str, Saved]) -> Any:
        """Opens the dense graph as a tf.compat.v1.Session with one thread, whose graph can still be extended."""
        program = self._program(artifact, saved, threads=1, inter_op_threads=1)
        opened = PythonSession(program)
        prepare(opened, program)
        return opened.session

    def _program(
        self, artifact: Path, saved: Mapping[str, Saved], *, threads: int, inter_op_threads: int
    ) -> GraphProgram:
        init, assets = self._add_init(), asset_paths(self._meta_graph, artifact)
        graph_def = type(self._meta_graph.graph_def)()
        graph_def.versions.CopyFrom(self._meta_graph.graph_def.versions)
        graph_def.node.extend(self._nodes.values())
        graph_def.library.CopyFrom(self._library())
        if read := sorted(self._nodes.keys() & self._tables.keys()):
            raise NotProven(f"what is left still reads table {self._tables[read[0]]!r}")
        variables = self._nodes.keys() & saved.keys()
        restored = add_restore(graph_def, saved, variables, checkpoint_prefix(artifact))
        # A graph without control flow ops and reference variables of TensorFlow 1 runs in TensorFlow's
        # SINGLE_THREADED_EXECUTOR, which is faster: it runs the nodes one by one in the caller's thread. Measured with
        # 128 rows and layers of 160, 256 and 1 columns: 173 us a run, against 219 us with the default executor.
        is_single_threaded = not any(node.op in _NEEDS_THREADS for node in graph_def.node)
        steps: list[Step] = [(restored, {})]
        if init:
            steps.append((init, {tensor: path for tensor, path in assets.items() if node_of(tensor) in self._nodes}))
        config = session_config(threads, inter_op_threads, is_single_threaded=is_single_threaded)
        return GraphProgram(graph_def.SerializeToString(), config, tuple(steps))

    def _add_init(self) -> str:
        name = init_op(self._meta_graph)
        if name:
            flat = flatten(self._meta_graph.graph_def, [name])
            self.add(flat, flat.ancestors([name, *(f"^{call}" for call in flat.calls)]), {})
        return name

    def _library(self) -> Any:
        functions = {f.signature.name: f for f in self._meta_graph.graph_def.library.function}
        library = type(self._meta_graph.graph_def.library)()
        found: set[str] = set()
        todo = list(self._nodes.values())
        for node in todo:
            for name in _called(node):
                if name not in found and name in functions:
                    found.add(name)
                    library.function.add().CopyFrom(functions[name])
                    todo.extend(functions[name].node_def)
        return library


def _called(node: Any) -> list[str]:
    names = [node.op]
    for value in node.attr.values():
        names.append(value.func.name)
        names.extend(function.name for function in value.list.func)
    return names
