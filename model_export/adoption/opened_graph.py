"""Opens the graph of a foreign SavedModel: its variables, and the gathers by which each signature reads their rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_export.adoption.spec import TABLE_DTYPES
from model_export.errors import ExportError
from model_export.graphs.signature_runner import SERVE
from model_export.parity.integrity import VARIABLES_PREFIX
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError
from service.graph.flat_graph import FlatGraph, flatten, node_of
from service.graph.handles import repair_handles, variable_names
from service.graph.restoring import Saved, saved_tensors
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import NotProven, acts, bottlenecks, has_effect, needed_nodes, table_reads
from service.types import SignatureSpec, runnable


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
    repaired: number of handles that nothing restored until repair_handles replaced them.
    """

    artifact: Path
    meta_graph: Any
    specs: Mapping[str, SignatureSpec]
    bundle: Mapping[str, BundleEntry]
    variables: Mapping[str, BundleEntry]
    handles: Mapping[str, Saved]
    repaired: int

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
        sparse = read_sparse_names(self.meta_graph)
        for name, spec in self.specs.items():
            try:
                yield spec, self._signature(spec, sparse.get(name, {}))
            except (NotProven, ArtifactError, KeyError) as error:
                yield spec, str(error)

    def _signature(self, spec: SignatureSpec, sparse: Mapping[str, SparseNames]) -> SignatureGraph:
        tensors = [*spec.inputs.values(), *spec.outputs.values()]
        splits = {names.row_splits for names in spec.ragged_names}
        if composite := [t.name for t in tensors if not t.tensor_name and t.name not in splits]:
            raise NotProven(f"{composite[0]!r} is a composite tensor, such as a sparse one")
        flat = flatten(self.meta_graph.graph_def, [tensor.tensor_name for tensor in spec.outputs.values()])
        outputs = {name: flat.resolved(tensor.tensor_name) for name, tensor in spec.outputs.items()}
        follow = has_effect(flat, frozenset())
        needed = needed_nodes(flat, outputs.values(), follow)
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
        handles = saved_tensors(meta_graph)
    except (OSError, RuntimeError, ArtifactError) as error:
        raise ExportError(f"cannot read {artifact}: {error}") from error
    restored = {saved.key for saved in handles.values()}
    variables = {
        key: entry
        for key, entry in bundle.items()
        if key in restored and len(entry.shape) == 2 and entry.dtype in TABLE_DTYPES
    }
    return OpenedGraph(artifact, meta_graph, runnable(specs), bundle, variables, handles, repaired)


def _content(entry: BundleEntry) -> tuple[object, ...]:
    return entry.shape, entry.dtype, entry.nbytes, entry.crc32c


def _first_row(part: str) -> int:
    # A checkpoint describes a part of a variable by a text such as "20 4 5,5:0,4": the variable's shape, then the
    # part's start and length in each dimension.
    return int(part.split(" ")[-1].partition(",")[0]) if part else 0
