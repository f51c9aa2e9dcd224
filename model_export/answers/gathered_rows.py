"""Runs a prediction's graph up to a gather of one table, and returns the ids and the rows that the gather reads.

The rows are read in the checkpoint: a gather reads the row of each id, and the table is not loaded.

So an added lookup is compared with the model's own graph, and not with the description that it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_export.answers.opened_graph import SignatureGraph, open_graph
from service.errors import ArtifactError
from service.graph.flat_graph import node_of
from service.graph.graph_session import DenseGraph
from service.graph.table_reads import NotProven
from service.graph.tower import part_of, request_feed
from service.types import Array, SignatureSpec


class NoGatherError(Exception):
    """Raised if it can not be said which rows a prediction reads for a feature; the message says why."""


class Table(Protocol):
    """A [V, D] table whose rows are read by their numbers, as parity.saved_table.SavedTable does."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Array, /) -> Array: ...


class GatheredRows:
    """The gathers in the graphs of an artifact's predictions. Concurrency: one caller at a time.

    Raises:
      ExportError: the artifact's graph can not be read.
    """

    def __init__(self, artifact: Path) -> None:
        self._opened = open_graph(artifact)
        self._graphs = {spec.name: graph for spec, graph in self._opened.signatures()}

    def open(self, signature: str, ids_input: str, variable: str, table: Table) -> OpenedGather:
        """Opens the one gather by which a signature reads rows of a variable for the ids or keys of an input.

        Raises:
          NoGatherError: the signature has no such gather, or several, or TensorFlow can not run the graph before it.
        """
        opened = self._opened
        try:
            parts = [saved.part for saved in opened.handles.values() if saved.key == variable]
            if not parts or any(parts):
                raise NotProven(f"variable {variable!r} is saved in parts, or the graph does not restore it")
            graph = self._graphs[signature]
            if isinstance(graph, str):
                raise NotProven(graph)
            if variable in graph.otherwise:
                raise NotProven(graph.otherwise[variable])
            reads = [gather.ids for read in graph.reads if read.key == variable for gather in read.gathers]
            found = [ids for ids in reads if ids_input in graph.sources(ids)]
            if len(found) != 1:
                raise NotProven(f"{len(found)} gathers of {variable!r} depend on input {ids_input!r}")
            graph = graph.part(found)
            dense = DenseGraph(opened.meta_graph, {}, opened.preparation)
            dense.add(graph.flat, graph.flat.ancestors(found, follow=graph.follow), {}, graph.follow)
            session = dense.open_in_python(opened.artifact, opened.handles)
        except (NotProven, ArtifactError) as error:
            raise NoGatherError(str(error)) from error
        return OpenedGather(session, graph, found[0], table)


class OpenedGather:
    """A gather of a prediction, in an open TensorFlow session. Close it after use."""

    def __init__(self, session: Any, graph: SignatureGraph, ids: str, table: Table) -> None:
        self._session, self._ids, self._table = session, ids, table
        self._inputs = frozenset(graph.spec.inputs)
        self._feed, self._names = request_feed(graph.spec, graph.sparse)
        self._known = {operation.name for operation in session.graph.get_operations()}

    def part_of(self, spec: SignatureSpec, names: Iterable[str]) -> SignatureSpec:
        return part_of(spec, {}, self._inputs | {*names})[0]

    def rows(self, request: Mapping[str, Array]) -> tuple[Array, Array] | None:
        import tensorflow as tf

        fed = dict(zip(self._names, self._feed(dict(request)), strict=True))
        fed = {tensor: array for tensor, array in fed.items() if node_of(tensor) in self._known}
        try:
            ids = np.asarray(self._session.run(self._ids, fed))
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
            return None
        size, dim = self._table.shape
        if ((ids < 0) | (ids >= size)).any():
            # The gather of TensorFlow refuses such ids.
            return None
        return ids, self._table[ids.reshape(-1)].reshape(*ids.shape, dim)

    def close(self) -> None:
        self._session.close()
