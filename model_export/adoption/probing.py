"""Runs parts of a foreign graph without loading its tables: feeds random rows in place of a table's own."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from model_export.adoption.opened_graph import OpenedGraph, Read, SignatureGraph
from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from service.artifact.bundle import BundleEntry
from service.errors import ArtifactError, InvalidRequest
from service.graph.dense_session import DenseGraph
from service.graph.flat_graph import node_of
from service.graph.table_reads import NotProven
from service.graph.table_rows import rows_of
from service.graph.tower import request_feed
from service.tables.table import MappedTable
from service.types import Array, TableInfo

_SEED = 29
# Numbers in some rows of random tables: a negative zero, denormal numbers, and two whose sum is denormal.
_SMALL = np.array([-0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38], np.float32)
# Flag of mmap: the pages of a table of random rows take memory only once rows are written to them.
_MAP_NORESERVE = 0x4000


class RandomTable(MappedTable):
    """A table of a given shape with random rows, which are made when they are asked for.

    A trained table may have equal rows, or rows of zeros, for which a wrong description of a lookup would go unnoticed.
    """

    __slots__ = ("_filled", "_norms")

    def __init__(self, key: str, entry: BundleEntry) -> None:
        size, dim = entry.shape
        stored = np.dtype(np.uint16 if entry.dtype == "bfloat16" else entry.dtype)
        memory = mmap.mmap(
            -1, max(1, size * dim * stored.itemsize), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        )
        rows = np.frombuffer(memory, stored, size * dim).reshape(size, dim)
        super().__init__(TableInfo(key, size, dim, entry.dtype, rows.nbytes, ()), rows)
        self._filled: set[int] = set()
        self._norms: tuple[float, ...] = ()

    def fill(self, ids: Array) -> None:
        """Makes the rows of some ids; ids that the table lacks are left out."""
        for row in set(np.asarray(ids).reshape(-1).tolist()) - self._filled:
            if 0 <= row < self.info.vocabulary_size:
                self._filled.add(row)
                self.weights[row] = self._row(row)

    def spread(self, norms: Iterable[float]) -> None:
        """Gives the rows norms below, near and above each of the given norms, with which a graph compares them."""
        wanted = tuple(sorted(norm for norm in norms if 0 < norm < 1e18))
        if wanted != self._norms:
            self._norms = wanted
            self._filled.clear()

    def _row(self, row: int) -> Array:
        numbers = np.random.default_rng((_SEED, row)).standard_normal(self.info.embedding_dim, np.float32)
        if self._norms:
            factors = np.array([0.5, 1.0, 2.0, 8.0]) / max(float(np.linalg.norm(numbers)), 1e-6)
            numbers = (numbers * self._norms[row % len(self._norms)] * factors[row // len(self._norms) % 4]).astype(
                np.float32
            )
        if row % 3 == 0 and (dim := self.info.embedding_dim) > 1:
            # Orders of additions differ in the signs of zeros, and in denormal numbers, too.
            small = _SMALL[: dim - 1]
            numbers[(np.arange(len(small)) + row) % dim] = small
        if self.info.dtype == "bfloat16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return numbers.astype(self.info.dtype)


class Probe:
    """A TensorFlow session of all signatures' graphs; rows of tables are fed. Concurrency: one caller at a time."""

    def __init__(self, opened: OpenedGraph, graphs: Iterable[SignatureGraph]) -> None:
        self._opened = opened
        dense = DenseGraph(opened.meta_graph, {})
        self.tables = {
            key: RandomTable(key, opened.variables[key])
            for key in {read.key for graph in graphs for read in graph.reads}
        }
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

        self._constants: dict[str, Array] = {}
        # The names of the graph's ops. An input that no node reads is not among them, and must not be fed.
        self._known = {operation.name for operation in self.session.graph.get_operations()}

    def close(self) -> None:
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
        table = self.tables[read.key]
        try:
            # Numbers that are no row splits can not be made indices of a sparse input: a ValueError.
            fed = self.feed(graph, request)
            found = self.session.run([gather.ids for gather in read.gathers], fed)
            for gather, ids in zip(read.gathers, found, strict=True):
                fed[gather.rows] = _rows(table, np.asarray(ids) + gather.first_row)
            return list(self.session.run(list(tensors), fed))
        except (tf.errors.OpError, InvalidRequest, ValueError):
            return None

    def rows_read(self, graph: SignatureGraph, read: Read, request: Mapping[str, Array]) -> Array:
        """Returns the numbers of the rows that the graph reads for a request that it accepts, [N] int64."""
        found = self.session.run([gather.ids for gather in read.gathers], self.feed(graph, request))
        rows = [np.asarray(ids).reshape(-1) + gather.first_row for gather, ids in zip(read.gathers, found, strict=True)]
        return np.concatenate(rows).astype(np.int64)

    def constant(self, tensor: str) -> Array:
        """Returns the value of a tensor that depends on no input and on no variable."""
        if tensor not in self._constants:
            self._constants[tensor] = np.asarray(self.session.run(tensor))
        return self._constants[tensor]

    def lookup_table(self, handle: str) -> tuple[Array, Array]:
        """Returns the keys and the values of a TensorFlow lookup table, given the tensor of its handle."""
        node = self.session.graph.get_operation_by_name(node_of(handle)).node_def
        with self.session.graph.as_default():
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=self.session.graph.get_tensor_by_name(handle),
                Tkeys=tf.as_dtype(node.attr["key_dtype"].type),
                Tvalues=tf.as_dtype(node.attr["value_dtype"].type),
            )
        keys, values = self.session.run([exported.keys, exported.values])
        return np.asarray(keys), np.asarray(values)


def _rows(table: RandomTable, ids: Array) -> Array:
    table.fill(ids)
    if table.info.dtype == "float32":
        return rows_of(ids, table)
    # rows_of() is called only for its error if an id is outside the table: the rows are returned in the stored dtype,
    # not as float32.
    rows_of(ids, table)
    return table.stored_rows(ids.reshape(-1)).reshape(*ids.shape, table.info.embedding_dim)
