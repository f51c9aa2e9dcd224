"""Runs a prediction's graph up to a gather of one table, and returns the ids and the rows that the gather reads.

The rows are read in the checkpoint: a gather reads the row of each id, and the table is not loaded.

So an added lookup is compared with the model's own graph, and not with the description that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_export.graphs.signature_runner import SERVE
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError
from service.graph.flat_graph import FlatGraph, flatten, node_of
from service.graph.graph_session import DenseGraph
from service.graph.restoring import Saved, repair_handles, saved_tensors
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import NotProven, has_effect, needed_nodes, table_reads
from service.graph.tower import request_feed
from service.types import Array, SignatureSpec


class NoGatherError(Exception):
    """Raised if it can not be said which rows a prediction reads for a feature; the message says why."""


class Table(Protocol):
    """A [V, D] table whose rows are read by their numbers, as parity.saved_table.SavedTable does."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Array, /) -> Array: ...


@dataclass(frozen=True, slots=True)
class _Gather:
    spec: SignatureSpec
    flat: FlatGraph
    ids: str
    sparse: Mapping[str, SparseNames]


class GatheredRows:
    """The gathers in the graphs of an artifact's predictions. Concurrency: one caller at a time.

    Raises:
      ArtifactError: the artifact's graph can not be read.
    """

    def __init__(self, artifact: Path) -> None:
        from tensorflow.python.saved_model.loader_impl import SavedModelLoader

        self._artifact = artifact
        self._meta_graph = SavedModelLoader(str(artifact)).get_meta_graph_def_from_tags(set(SERVE))
        repair_handles(self._meta_graph, artifact)
        self._saved: Mapping[str, Saved] = saved_tensors(self._meta_graph)
        self._specs = read_signatures(artifact / "saved_model.pb", frozenset(SERVE))
        self._sparse = read_sparse_names(self._meta_graph)

    def open(self, signature: str, ids_input: str, variable: str, table: Table) -> OpenedGather:
        """Opens the one gather by which a signature reads rows of a variable for the ids or keys of an input.

        Args:
          variable: the table's key in the checkpoint. table: reads its rows.

        Raises:
          NoGatherError: the signature has no such gather, or several, or TensorFlow can not run the graph before it.
        """
        try:
            gather = self._found(signature, ids_input, variable)
            dense = DenseGraph(self._meta_graph, {})
            follow = has_effect(gather.flat, frozenset())
            dense.add(gather.flat, gather.flat.ancestors([gather.ids], follow=follow), {}, follow)
            session = dense.open_in_python(self._artifact, self._saved)
        except (NotProven, ArtifactError) as error:
            raise NoGatherError(str(error)) from error
        return OpenedGather(session, gather, table)

    def _found(self, signature: str, ids_input: str, variable: str) -> _Gather:
        spec, sparse = self._specs[signature], self._sparse.get(signature, {})
        handles = {handle: saved.key for handle, saved in self._saved.items() if saved.key == variable}
        if not handles or any(self._saved[handle].part for handle in handles):
            raise NotProven(f"variable {variable!r} is saved in parts, or the graph does not restore it")
        flat = flatten(self._meta_graph.graph_def, [tensor.tensor_name for tensor in spec.outputs.values()])
        roots = [flat.resolved(tensor.tensor_name) for tensor in spec.outputs.values()]
        follow = has_effect(flat, frozenset())
        reads = table_reads(flat, needed_nodes(flat, roots, follow), handles)
        source = node_of(flat.resolved(spec.inputs[ids_input].tensor_name))
        found = [read for read in reads if source in flat.ancestors([read.ids], follow=follow)]
        if len(found) != 1:
            raise NotProven(f"{len(found)} gathers of {variable!r} depend on input {ids_input!r}")
        return _Gather(spec, flat, found[0].ids, sparse)


class OpenedGather:
    """A gather of a prediction, in an open TensorFlow session. Close it after use."""

    def __init__(self, session: Any, gather: _Gather, table: Table) -> None:
        self._session, self._gather, self._table = session, gather, table
        self._feed, self._names = request_feed(gather.spec, gather.sparse)
        self._known = {operation.name for operation in session.graph.get_operations()}

    def rows(self, request: Mapping[str, Array]) -> tuple[Array, Array] | None:
        """Returns the ids and rows that the gather reads for a request; None if the graph refuses the request."""
        import tensorflow as tf

        fed = dict(zip(self._names, self._feed(dict(request)), strict=True))
        fed = {tensor: array for tensor, array in fed.items() if node_of(tensor) in self._known}
        try:
            ids = np.asarray(self._session.run(self._gather.ids, fed))
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
            return None
        size, dim = self._table.shape
        if ((ids < 0) | (ids >= size)).any():
            # The gather of TensorFlow refuses such ids.
            return None
        return ids, self._table[ids.reshape(-1)].reshape(*ids.shape, dim)

    def close(self) -> None:
        self._session.close()
