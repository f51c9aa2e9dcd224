"""Opens the graph of a foreign SavedModel: its variables, and the gathers by which each signature reads their rows."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.signature_runner import SERVE
from model_export.graphs.source import ADOPTED_DTYPES, VARIABLES_PREFIX
from model_export.tensorflow_setup import tf
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError, InvalidRequest
from service.graph.flat_graph import FlatGraph, flatten, node_of
from service.graph.graph_session import DenseGraph
from service.graph.restoring import Saved, repair_handles, restored_otherwise, saved_tensors, variable_names
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import (
    NotProven,
    acts,
    bottlenecks,
    check_kept,
    has_effect,
    needed_nodes,
    table_reads,
    written_variables,
)
from service.graph.tower import request_feed, rows_of
from service.tables.table import MappedTable
from service.types import Array, SignatureSpec, TableInfo, runnable


@dataclass(frozen=True, slots=True)
class RowRead:
    """A gather op that reads rows of a table. ids, rows: the graph's names of its ids tensor and of its result."""

    ids: str
    rows: str
    first_row: int


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a variable's rows: a single gather, or one gather per part if the variable is saved in parts.

    key: the variable's key in the checkpoint.
    """

    key: str
    gathers: tuple[RowRead, ...]

    @property
    def rows(self) -> frozenset[str]:
        """Names of the graph's tensors that hold the results of this read's gather ops, which are rows of the table."""
        return frozenset(gather.rows for gather in self.gathers)


@dataclass(frozen=True, slots=True)
class SignatureGraph:
    """The graph of one signature of an adopted model, with all function calls inlined.

    outputs: name of the output -> its tensor in the flat graph.
    needed: the nodes that the outputs depend on.
    reads: every read of the tables that the signature reads row by row.
    otherwise: checkpoint key of a variable -> why its reads in this signature are no lookups.
    """

    spec: SignatureSpec
    flat: FlatGraph
    outputs: Mapping[str, str]
    needed: set[str]
    reads: Sequence[Read]
    otherwise: Mapping[str, str]
    sparse: Mapping[str, SparseNames]
    follow: Any = field(repr=False)

    def behind(self, read: Read) -> list[str]:
        """Returns the tensors that lie on every path from the read's rows to the outputs, nearest to the rows first.

        The signature's outputs come last.
        """
        found = bottlenecks(self.flat, self.needed, self.outputs.values(), read.gathers[0].rows, self.follow)
        return found + [tensor for tensor in self.outputs.values() if tensor not in found]

    def placeholders(self) -> dict[str, str]:
        """Maps each placeholder node of the graph to the name of the signature's input that is fed to it."""
        nodes = {node_of(tensor.tensor_name): name for name, tensor in self.spec.inputs.items() if tensor.tensor_name}
        for names in self.sparse.values():
            values = nodes[node_of(names.values)]
            splits = next(ragged.row_splits for ragged in self.spec.ragged_names if ragged.values == values)
            nodes |= {node_of(names.indices): splits, node_of(names.dense_shape): splits}
        return nodes

    def check(self, lookups: Collection[str], source: str = "") -> str:
        """Returns the op of a node that runs only to refuse requests, such as Assert; "" if there is none.

        Checks of row splits are left out.

        Args:
          lookups: inputs of lookups, whose row splits the server checks itself.
          source: an input that the op must depend on; "" for any.
        """
        nodes = self.placeholders()
        ragged = {name for names in self.spec.ragged_names for name in (names.values, names.row_splits)} | {*lookups}
        known = frozenset(node for node, name in nodes.items() if name in ragged)
        computed = self.flat.ancestors(self.outputs.values(), follow=lambda reference: False)
        for name in sorted(self.needed - computed):
            if acts(self.flat, name, known):
                inputs = {nodes[n] for n in self.flat.ancestors([name]) if n in nodes}
                if not source or source in inputs:
                    return str(self.flat.nodes[name].op)
        return ""

    def sources(self, tensor: str) -> set[str]:
        """Returns the names of the signature's inputs on which the given tensor depends."""
        nodes = self.placeholders()
        return {nodes[name] for name in self.flat.ancestors([tensor], follow=self.follow) if name in nodes}


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    """An opened SavedModel: its {serve} MetaGraph and the entries of its checkpoint.

    bundle: key in the checkpoint -> entry. variables: the entries that the graph restores and that may be tables.
    handles: variable node of the graph -> the checkpoint tensor that the node is restored from.
    kept: nodes of the graph whose state is no variable, such as mutable hash tables.
    written: nodes of the graph that a signature writes.
    repaired: number of handles that nothing restored until repair_handles replaced them.
    sparse: signature -> the names of its sparse inputs' tensors, by input.
    """

    artifact: Path
    meta_graph: Any
    specs: Mapping[str, SignatureSpec]
    bundle: Mapping[str, BundleEntry]
    variables: Mapping[str, BundleEntry]
    handles: Mapping[str, Saved]
    kept: frozenset[str]
    written: frozenset[str]
    repaired: int
    sparse: Mapping[str, Mapping[str, SparseNames]]

    def handles_of(self, key: str) -> list[str]:
        """Returns the graph nodes of a variable; the nodes of a variable in parts are in the order of their rows."""
        found = [(saved.part, handle) for handle, saved in self.handles.items() if saved.key == key]
        return [handle for _, handle in sorted(found, key=lambda item: _first_row(item[0]))]

    def variable_names(self) -> dict[str, str]:
        return variable_names(self.meta_graph, self.artifact)

    def alias(self, key: str) -> str:
        """Returns `key` or, if no variable has this checkpoint key, that of a variable with the same saved bytes."""
        if key in self.variables:
            return key
        entry = self.bundle.get(key)
        same = (k for k, other in self.variables.items() if entry and _content(other) == _content(entry))
        return next(same, key)

    def signatures(self) -> Iterator[tuple[SignatureSpec, SignatureGraph | str]]:
        """Yields every signature of the opened SavedModel with its flat graph, or why adopt can not analyse it."""
        for name, spec in self.specs.items():
            try:
                yield spec, self.signature(name)
            except (NotProven, ArtifactError, KeyError) as error:
                yield spec, str(error)

    def signature(self, name: str) -> SignatureGraph:
        """Returns the flat graph of a signature; raises NotProven, ArtifactError or KeyError if there can be none."""
        spec, sparse = self.specs[name], self.sparse.get(name, {})
        tensors = [*spec.inputs.values(), *spec.outputs.values()]
        splits = {names.row_splits for names in spec.ragged_names}
        if composite := [t.name for t in tensors if not t.tensor_name and t.name not in splits]:
            raise NotProven(f"{composite[0]!r} is a composite tensor, such as a sparse one")
        flat = flatten(self.meta_graph.graph_def, [tensor.tensor_name for tensor in spec.outputs.values()])
        outputs = {name: flat.resolved(tensor.tensor_name) for name, tensor in spec.outputs.items()}
        follow = has_effect(flat, frozenset())
        needed = needed_nodes(flat, outputs.values(), follow)
        check_kept(needed, self.kept, self.written)
        reads: list[Read] = []
        otherwise: dict[str, str] = {}
        for key in self.variables:
            try:
                reads += self._reads(flat, needed, key)
            except NotProven as error:
                otherwise[key] = str(error)
        return SignatureGraph(spec, flat, outputs, needed, reads, otherwise, sparse, follow)

    def _reads(self, flat: FlatGraph, needed: set[str], key: str) -> list[Read]:
        handles = self.handles_of(key)
        of_parts = []
        for handle in handles:
            first = _first_row(self.handles[handle].part)
            found = table_reads(flat, needed, {handle: key})
            of_parts.append([RowRead(read.ids, read.rows, first) for read in found])
        if not any(self.handles[handle].part for handle in handles):
            return [Read(key, (gather,)) for gathers in of_parts for gather in gathers]
        counts = {len(gathers) for gathers in of_parts}
        if counts == {1}:
            return [Read(key, tuple(gathers[0] for gathers in of_parts))]
        if counts != {0}:
            raise NotProven(f"variable {key!r} is saved in parts, and the signature reads the parts more than once")
        return []


def open_graph(artifact: Path) -> OpenedGraph:
    """Reads a SavedModel's {serve} graph without loading any variable.

    Raises:
      ExportError: the folder is no SavedModel, or TensorFlow can not read it.
    """
    from tensorflow.python.saved_model.loader_impl import SavedModelLoader

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        meta_graph = SavedModelLoader(str(artifact)).get_meta_graph_def_from_tags(set(SERVE))
        specs = read_signatures(artifact / "saved_model.pb", frozenset(SERVE))
        bundle = read_bundle(artifact / VARIABLES_PREFIX)
        repaired = repair_handles(meta_graph, artifact)
        handles, kept = saved_tensors(meta_graph), restored_otherwise(meta_graph)
        written = written_variables(meta_graph)
    except (OSError, RuntimeError, ArtifactError) as error:
        raise ExportError(f"cannot read {artifact}: {error}") from error
    restored = {saved.key for saved in handles.values()}
    variables = {
        key: entry
        for key, entry in bundle.items()
        if key in restored and len(entry.shape) == 2 and entry.dtype in ADOPTED_DTYPES
    }
    sparse = read_sparse_names(meta_graph)
    return OpenedGraph(
        artifact, meta_graph, runnable(specs), bundle, variables, handles, kept, written, repaired, sparse
    )


def _content(entry: BundleEntry) -> tuple[object, ...]:
    return entry.shape, entry.dtype, entry.nbytes, entry.crc32c


def _first_row(part: str) -> int:
    # A checkpoint describes a part of a variable by a text such as "20 4 5,5:0,4": the variable's shape, then the
    # part's start and length in each dimension.
    return int(part.split(" ")[-1].partition(",")[0]) if part else 0


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
