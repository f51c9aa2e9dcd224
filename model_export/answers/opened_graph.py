"""Opens the graph of a foreign SavedModel: its variables, and the gathers by which each signature reads their rows."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.signature_runner import SERVE
from model_export.graphs.source import ADOPTED_DTYPES, VARIABLES_PREFIX
from model_export.tensorflow_setup import tf
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.signature_def import read_meta_graph, read_signatures
from service.errors import ArtifactError, InvalidRequest
from service.graph.claimed_ops import ClaimedOps
from service.graph.flat_graph import FlatGraph, flatten, node_of, reachable
from service.graph.graph_session import DenseGraph, Fed, Preparation
from service.graph.restoring import Saved, repair_handles, restored_otherwise, saved_tensors, variable_names
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import (
    PLACEHOLDERS,
    NotProven,
    acting,
    bottlenecks,
    check_kept,
    downstream,
    has_effect,
    initialized_variables,
    needed_nodes,
    readers_of,
    table_reads,
    written_variables,
)
from service.graph.tower import part_of, request_feed, rows_of
from service.tables.table import MappedTable
from service.types import Array, SignatureSpec, TableInfo, Tensors, runnable

# DataType numbers of uint8 and int8.
_QUANTIZED = (4, 6)


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
        return frozenset(gather.rows for gather in self.gathers)


@dataclass(frozen=True)
class SignatureGraph:
    """The graph of one signature of an adopted model, with all function calls inlined.

    reads: every read of the tables that the signature reads row by row.
    otherwise: checkpoint key of a variable -> why its reads in this signature are no lookups.
    whole: of a part(), the graph of the signature; None for the graph of a signature.
    """

    spec: SignatureSpec
    flat: FlatGraph
    outputs: Mapping[str, str]
    needed: set[str]
    reads: Sequence[Read]
    otherwise: Mapping[str, str]
    sparse: Mapping[str, SparseNames]
    follow: Any = field(repr=False)
    whole: SignatureGraph | None = field(default=None, repr=False)

    def part(self, tensors: Iterable[str]) -> SignatureGraph:
        """Returns the same graph with the inputs alone on which the given tensors depend: requests to it are small."""
        names = {name for tensor in tensors for name in self.sources(tensor)}
        names |= {part for one in self.spec.ragged_names if not names.isdisjoint(one[1:]) for part in one[1:]}
        spec, sparse = part_of(self.spec, self.sparse, names)
        return replace(self, spec=spec, sparse=sparse, whole=self)

    def behind(self, read: Read) -> list[str]:
        """Returns the tensors that lie on every path from the read's rows to the outputs, nearest to the rows first.

        The signature's outputs that depend on the rows come last.
        """
        rows = read.gathers[0].rows
        found = bottlenecks(self.flat, self._readers, self.outputs.values(), rows)
        behind = {node_of(rows), *downstream(self._readers, node_of(rows))}
        return found + [one for one in self.outputs.values() if one not in found and node_of(one) in behind]

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        return readers_of(self.flat, self.needed, self.follow)

    @cached_property
    def ops(self) -> ClaimedOps:
        return self.whole.ops if self.whole else ClaimedOps(self.flat)

    @cached_property
    def rows(self) -> dict[str, str]:
        return self.whole.rows if self.whole else {rows: read.key for read in self.reads for rows in read.rows}

    @cached_property
    def placeholders(self) -> dict[str, str]:
        nodes = {node_of(tensor.tensor_name): name for name, tensor in self.spec.inputs.items() if tensor.tensor_name}
        splits_of = {ragged.values: ragged.row_splits for ragged in self.spec.ragged_names}
        for names in self.sparse.values():
            splits = splits_of[nodes[node_of(names.values)]]
            nodes |= {node_of(names.indices): splits, node_of(names.dense_shape): splits}
        return nodes

    def check(self, lookups: Collection[str]) -> str:
        """Returns the op of a node that runs only to refuse requests, such as Assert; "" if there is none.

        Checks of row splits are left out.

        Args:
          lookups: inputs of lookups, whose row splits the server checks itself.
        """
        ragged = {name for names in self.spec.ragged_names for name in (names.values, names.row_splits)} | {*lookups}
        known = (node for node, name in self.placeholders.items() if name in ragged)
        return next((self.flat.nodes[name].op for name in self._checks(frozenset(known))), "")

    def check_of(self, source: str) -> str:
        """Returns the op of a check that depends on an input, as check() does; leaves out all checks of row splits."""
        return (self.whole or self)._check_of.get(source, "")

    @cached_property
    def _check_of(self) -> dict[str, str]:
        found: dict[str, str] = {}
        seen: set[str] = set()
        for name in self._checks(frozenset(self.placeholders)):
            for node in self.flat.walk([name], seen, follow=lambda reference: False):
                if node in self.placeholders:
                    found[self.placeholders[node]] = found.get(self.placeholders[node], self.flat.nodes[name].op)
        return found

    def _checks(self, known: frozenset[str]) -> Iterator[str]:
        computed = self.flat.ancestors(self.outputs.values(), follow=lambda reference: False)
        return filter(acting(self.flat, known), sorted(self.needed - computed))

    def sources(self, tensor: str) -> frozenset[str]:
        graph = self.whole or self
        found = graph._sources.get(tensor)
        if found is None:
            before = graph.flat.ancestors([tensor], follow=graph.follow)
            nodes = graph.placeholders
            found = graph._sources[tensor] = frozenset(nodes[name] for name in before if name in nodes)
        return found

    @cached_property
    def _sources(self) -> dict[str, frozenset[str]]:
        return {}

    def quantized_inputs(self) -> frozenset[str]:
        """Returns the inputs by which the signature reads rows of 8-bit integers, whose scales are a variable apart."""
        found: set[str] = set()
        for name in self.needed:
            if self.flat.nodes[name].op in ("Gather", "GatherV2", "ResourceGather"):
                table, ids = self.flat.data_inputs(name)[:2]
                source = self.flat.nodes[node_of(table)]
                while source.op in ("ReadVariableOp", "Identity"):
                    source = self.flat.nodes[node_of(self.flat.data_inputs(source.name)[0])]
                if source.op in ("VarHandleOp", "VariableV2") and source.attr["dtype"].type in _QUANTIZED:
                    found |= self.sources(ids)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    """An opened SavedModel: its {serve} MetaGraph and the entries of its checkpoint.

    bundle: key in the checkpoint -> entry. variables: the entries that the graph restores and that may be tables.
    handles: variable node of the graph -> the checkpoint tensor that the node is restored from.
    kept: nodes of the graph whose state is no variable, such as mutable hash tables.
    written: nodes of the graph that a signature writes. initialized: those that the init node writes.
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
    initialized: frozenset[str]
    repaired: int
    sparse: Mapping[str, Mapping[str, SparseNames]]
    preparation: Preparation

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
        needed = needed_nodes(flat, outputs.values(), has_effect(flat, frozenset()))
        # No lookup waits for a check of row splits, which the server makes itself.
        fed = (node_of(tensor.tensor_name) for tensor in spec.inputs.values() if tensor.tensor_name)
        follow = has_effect(flat, frozenset(fed))
        check_kept(needed, self.kept, self.written)
        reads: list[Read] = []
        otherwise: dict[str, str] = {}
        readers = readers_of(flat, needed)
        for key in self.variables:
            try:
                reads += self._reads(flat, needed, key, readers)
            except NotProven as error:
                otherwise[key] = str(error)
        gathers = [gather for read in reads for gather in read.gathers]
        ends = [*outputs.values(), *(gather.ids for gather in gathers)]
        left = flat.ancestors(ends, cut=frozenset(gather.rows for gather in gathers), follow=follow)
        flat.drop_controls(left, follow)
        return SignatureGraph(spec, flat, outputs, needed, reads, otherwise, sparse, follow)

    def _reads(self, flat: FlatGraph, needed: set[str], key: str, readers: Mapping[str, Sequence[str]]) -> list[Read]:
        handles = self.handles_of(key)
        if not needed.isdisjoint(self.initialized.intersection(handles)):
            raise NotProven(f"variable {key!r} is written when the model is loaded")
        entry = self.variables[key]
        if entry.is_sliced and any(part.start[1] or part.entry.shape[1] != entry.shape[1] for part in entry.slices):
            raise NotProven(f"variable {key!r} is saved in parts by columns")
        of_parts = []
        for handle in handles:
            first = _first_row(self.handles[handle].part)
            found = table_reads(flat, needed, {handle: key}, readers)
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
        written, initialized = written_variables(meta_graph), initialized_variables(meta_graph)
        preparation = Preparation(meta_graph)
    except (OSError, RuntimeError, ArtifactError) as error:
        raise ExportError(f"cannot read {artifact}: {error}") from error
    restored = {saved.key for saved in handles.values()}
    variables = {
        key: entry
        for key, entry in bundle.items()
        if key in restored and len(entry.shape) == 2 and all(entry.shape) and entry.dtype in ADOPTED_DTYPES
    }
    sparse = read_sparse_names(meta_graph)
    return OpenedGraph(
        artifact,
        meta_graph,
        runnable(specs),
        bundle,
        variables,
        handles,
        kept,
        written,
        initialized,
        repaired,
        sparse,
        preparation,
    )


def needed_inputs(artifact: Path, spec: SignatureSpec) -> dict[str, frozenset[str]]:
    """Returns output of a signature -> the inputs without which TensorFlow does not compute it.

    A function that computes all outputs needs all inputs. "" stands for a placeholder that is no input.
    """
    nodes = {node.name: node for node in read_meta_graph(artifact / "saved_model.pb").graph_def.node}
    inputs = {node_of(tensor.tensor_name): name for name, tensor in spec.inputs.items()}
    of_node: dict[str, frozenset[str]] = {}
    for tensor in spec.outputs.values():
        name = node_of(tensor.tensor_name)
        if name not in of_node:
            before = reachable(nodes, [name] if name else [])
            of_node[name] = frozenset(inputs.get(n, "") for n in before if nodes[n].op in PLACEHOLDERS)
    return {name: of_node[node_of(tensor.tensor_name)] for name, tensor in spec.outputs.items()}


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
    """A TensorFlow session of the part of a graph that one read's lookup can span; rows of its table are fed.

    A session of the whole graph would copy the graph for each tensor that is asked for: a read has about ten.
    Concurrency: one caller at a time.
    """

    def __init__(self, opened: OpenedGraph, graph: SignatureGraph, read: Read, tensors: Iterable[str]) -> None:
        self.graph, self.read = graph, read
        self.table = RandomTable(read.key, opened.variables[read.key])
        self._opened, self._tensors = opened, [*tensors]
        self._constants: dict[str, Array] = {}
        self._calls: dict[tuple[tuple[str, ...], tuple[str, ...]], _Call] = {}

    @cached_property
    def _session(self) -> Any:
        opened, graph, rows = self._opened, self.graph, self.graph.rows
        ends = [*self._tensors, *(gather.ids for gather in self.read.gathers)]
        # No table is loaded: other tables' rows are placeholders, too, which nothing is fed to.
        left = graph.flat.ancestors(ends, cut=frozenset(rows), follow=graph.follow)
        given = {i for name in left for i in graph.flat.nodes[name].input if i in rows} | self.read.rows
        dtypes = {tensor: tf.as_dtype(opened.variables[rows[tensor]].dtype) for tensor in given}
        placeholders = {node_of(tensor): Fed(dtype.as_datatype_enum) for tensor, dtype in dtypes.items()}
        dense = DenseGraph(opened.meta_graph, {}, opened.preparation)
        dense.add(graph.flat, left | placeholders.keys(), placeholders, graph.follow)
        try:
            return dense.open_in_python(opened.artifact, opened.handles)
        except (NotProven, ArtifactError, tf.errors.OpError) as error:
            raise ExportError(f"TensorFlow can not run the graph of {opened.artifact}: {error}") from error

    def close(self) -> None:
        if "_session" in vars(self):
            self._session.close()

    @cached_property
    def _feed(self) -> Callable[[Tensors], dict[str, Array]]:
        convert, names = request_feed(self.graph.spec, self.graph.sparse)
        # An input that no node reads is not among the session's ops, and must not be fed.
        known = {operation.name for operation in self._session.graph.get_operations()}

        def feed(request: Tensors) -> dict[str, Array]:
            fed = dict(zip(names, convert(request), strict=True))
            return {tensor: array for tensor, array in fed.items() if node_of(tensor) in known}

        return feed

    def run(self, request: Mapping[str, Array], tensor: str) -> Array | None:
        """Runs the graph up to a tensor; feeds rows of the table in place of the results of the read's gathers.

        Returns None if the graph refuses the request.
        """
        gathers = self.read.gathers
        try:
            # Numbers that are no row splits can not be made indices of a sparse input: a ValueError.
            fed = self._feed(request)
            found = self._compute(tuple(gather.ids for gather in gathers), fed)
            for gather, ids in zip(gathers, found, strict=True):
                fed[gather.rows] = _rows(self.table, ids + gather.first_row)
            return self._compute((tensor,), fed)[0]
        except (tf.errors.OpError, InvalidRequest, ValueError):
            return None

    def rows_read(self, request: Mapping[str, Array]) -> Array:
        """Returns the numbers of the rows that the graph reads for a request that it accepts, [N] int64."""
        gathers = self.read.gathers
        found = self._compute(tuple(gather.ids for gather in gathers), self._feed(request))
        rows = [ids.reshape(-1) + gather.first_row for gather, ids in zip(gathers, found, strict=True)]
        return np.concatenate(rows).astype(np.int64)

    def _compute(self, tensors: tuple[str, ...], fed: Mapping[str, Array]) -> list[Array]:
        key = (tensors, tuple(fed))
        if key not in self._calls:
            self._calls[key] = _Call(self._session, *key)
        return self._calls[key].run([*fed.values()])

    def constant(self, tensor: str) -> Array:
        if tensor not in self._constants:
            node = self.graph.flat.nodes[node_of(tensor)]
            is_stored = node.op == "Const"
            found = tf.make_ndarray(node.attr["value"].tensor) if is_stored else self._session.run(tensor)
            self._constants[tensor] = np.asarray(found)
        return self._constants[tensor]

    def lookup_table(self, handle: str) -> tuple[Array, Array]:
        graph = self._session.graph
        node = graph.get_operation_by_name(node_of(handle)).node_def
        with graph.as_default():
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=graph.get_tensor_by_name(handle),
                Tkeys=tf.as_dtype(node.attr["key_dtype"].type),
                Tvalues=tf.as_dtype(node.attr["value_dtype"].type),
            )
        keys, values = self._session.run([exported.keys, exported.values])
        return np.asarray(keys), np.asarray(values)


class _Call:
    """Computes the same tensors from the same feeds as often as asked, as Session.run() does.

    Session.run() checks all names again each time, which takes longer than the run of a small graph.

    Raises:
      ValueError: an array does not have its placeholder's shape.
    """

    def __init__(self, session: Any, tensors: Sequence[str], feeds: Sequence[str]) -> None:
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        fed = [session.graph.get_tensor_by_name(name) for name in feeds]
        self._tensors, self._feeds = tensors, feeds
        # A callable refuses to fetch what is fed; Session.run() returns the fed array.
        self._fetches = [tensor for tensor in dict.fromkeys(tensors) if tensor not in feeds]
        if self._fetches:
            self._call = session._make_callable_from_options(CallableOptions(feed=feeds, fetch=self._fetches))
        self._dtypes = [tensor.dtype.as_numpy_dtype for tensor in fed]
        self._shapes = [None if tensor.shape.rank is None else tensor.shape.as_list() for tensor in fed]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        given = [np.asarray(array, dtype) for array, dtype in zip(arrays, self._dtypes, strict=True)]
        for array, shape in zip(given, self._shapes, strict=True):
            if shape is None:
                continue
            if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
                raise ValueError(f"shape {array.shape} is not {shape}")
        found = dict(zip(self._feeds, given, strict=True))
        if self._fetches:
            found |= zip(self._fetches, map(np.asarray, self._call(*given)), strict=True)
        return [found[tensor] for tensor in self._tensors]


def _rows(table: RandomTable, ids: Array) -> Array:
    table.fill(ids)
    if table.info.dtype == "float32":
        return rows_of(ids, table)
    # rows_of() is called only for its error if an id is outside the table: the rows are returned in the stored dtype,
    # not as float32.
    rows_of(ids, table)
    return table.stored_rows(ids.reshape(-1)).reshape(*ids.shape, table.info.embedding_dim)
