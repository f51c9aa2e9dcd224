"""Runs parts of a foreign graph without loading its tables: feeds random rows, or a large table's mapped rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from model_export.adoption.opened_graph import OpenedGraph, Read, SignatureGraph
from model_export.errors import ExportError
from model_export.parity.integrity import table_entry
from model_export.tensorflow_setup import tf
from service.artifact.bundle import BundleEntry
from service.artifact.manifest import Manifest
from service.errors import ArtifactError, InvalidRequest
from service.graph.dense_session import DenseGraph
from service.graph.flat_graph import node_of
from service.graph.table_reads import NotProven
from service.graph.table_rows import rows_of
from service.graph.tower import request_feed
from service.tables.table import MappedTable, open_tables
from service.types import Array, TableInfo

# Size in bytes up to which adopt replaces a table's rows by random numbers while it searches for lookups. A larger
# table's own rows are fed, from the mapped file, on the assumption that no two rows are equal.
_MOST_RANDOM_BYTES = 64 << 20
_SEED = 29


class Probe:
    """A TensorFlow session of all signatures' graphs; rows of tables are fed. Concurrency: one caller at a time."""

    def __init__(self, opened: OpenedGraph, graphs: Iterable[SignatureGraph]) -> None:
        self._opened = opened
        dense = DenseGraph(opened.meta_graph, {})
        self.tables = {key: _table(opened, key) for key in {read.key for graph in graphs for read in graph.reads}}
        for graph in graphs:
            gathers = [gather for read in graph.reads for gather in read.gathers]
            ends = [*graph.outputs.values(), *(gather.ids for gather in gathers)]
            left = graph.flat.ancestors(ends, cut=frozenset(g.rows for g in gathers), follow=graph.follow)
            dtypes = {read: tf.as_dtype(opened.variables[read.key].dtype).as_datatype_enum for read in graph.reads}
            placeholders = {node_of(rows): dtype for read, dtype in dtypes.items() for rows in read.rows}
            dense.add(graph.flat, left | placeholders.keys(), placeholders, graph.follow)
        try:
            self.session = dense.open_in_python(opened.artifact, opened.handles)
        except (NotProven, ArtifactError, tf.errors.OpError) as error:
            raise ExportError(f"TensorFlow can not run the graph of {opened.artifact}: {error}") from error

        # The names of the graph's ops. An input that no node reads is not among them, and must not be fed.
        self._known = {operation.name for operation in self.session.graph.get_operations()}

    def close(self) -> None:
        """Closes the TensorFlow session of the probed graphs."""
        self.session.close()

    def feed(self, graph: SignatureGraph, request: Mapping[str, Array]) -> dict[str, Array]:
        """Returns a request's arrays by tensor name; leaves out inputs whose tensors the session's graph lacks."""
        to_feed, names = request_feed(graph.spec, graph.sparse)
        fed = dict(zip(names, to_feed(request), strict=True))
        return {tensor: array for tensor, array in fed.items() if node_of(tensor) in self._known}

    def run(
        self, graph: SignatureGraph, request: Mapping[str, Array], read: Read, tensors: Sequence[str]
    ) -> list[Array] | None:
        """Runs the graph up to `tensors`; feeds rows of the table in place of the results of the gathers of `read`.

        Returns None if the graph refuses the request.
        """
        fed, table = self.feed(graph, request), self.tables[read.key]
        try:
            found = self.session.run([gather.ids for gather in read.gathers], fed)
            for gather, ids in zip(read.gathers, found, strict=True):
                fed[gather.rows] = _rows(table, np.asarray(ids) + gather.first_row)
            return list(self.session.run(list(tensors), fed))
        except (tf.errors.OpError, InvalidRequest, ValueError):
            return None

    def ids(self, graph: SignatureGraph, read: Read, request: Mapping[str, Array]) -> Array | None:
        """Computes the ids that the graph looks up for a request; None for a refused request or a table in parts."""
        if len(read.gathers) > 1:
            return None
        try:
            return np.asarray(self.session.run(read.gathers[0].ids, self.feed(graph, request)))
        except (tf.errors.OpError, ValueError):
            return None

    def exported_tables(self, graph: SignatureGraph, tensor: str) -> list[Array]:
        """Returns the keys of every TensorFlow lookup table that a tensor depends on."""
        found = []
        for name in sorted(graph.flat.ancestors([tensor], follow=graph.follow)):
            node = graph.flat.nodes[name]
            if node.op in ("LookupTableFindV2", "LookupTableFind"):
                with self.session.graph.as_default():
                    keys, _ = tf.raw_ops.LookupTableExportV2(
                        table_handle=self.session.graph.get_tensor_by_name(graph.flat.data_inputs(name)[0]),
                        Tkeys=tf.as_dtype(node.attr["Tin"].type),
                        Tvalues=tf.as_dtype(node.attr["Tout"].type),
                    )
                found.append(np.asarray(self.session.run(keys)))
        return found


def _table(opened: OpenedGraph, key: str) -> MappedTable:
    entry = opened.variables[key]
    is_small = entry.is_sliced or entry.nbytes <= _MOST_RANDOM_BYTES
    return _random(key, entry) if is_small else _mapped(opened, key, entry)


def _rows(table: MappedTable, ids: Array) -> Array:
    if table.info.dtype == "float32":
        return rows_of(ids, table)
    # rows_of() is called only for its error if an id is outside the table: the rows are returned in the stored dtype,
    # not as float32.
    rows_of(ids, table)
    return table.stored_rows(ids.reshape(-1)).reshape(*ids.shape, table.info.embedding_dim)


def _random(key: str, entry: BundleEntry) -> MappedTable:
    # The rows are random, because a trained table may have equal rows, for which a wrong description of the lookup
    # would go unnoticed.
    numbers = np.random.default_rng(_SEED).standard_normal(entry.shape, np.float32)
    is_bfloat16 = entry.dtype == "bfloat16"
    rows: Array = (numbers.view(np.uint32) >> 16).astype(np.uint16) if is_bfloat16 else numbers.astype(entry.dtype)
    size, dim = entry.shape
    return MappedTable(TableInfo(key, size, dim, entry.dtype, rows.nbytes, ()), rows)


def _mapped(opened: OpenedGraph, key: str, entry: BundleEntry) -> MappedTable:
    tables = {key: table_entry(opened.artifact, key, entry)}
    return open_tables(opened.artifact, Manifest(tables, {}, {}))[key]
