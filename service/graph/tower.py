"""Declares signatures that were cut into lookups on mapped tables and the rest of the graph (the tower) in TensorFlow.

TensorFlow loads no table: the native core feeds looked-up rows to the session in place of the graph's own reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.graph.graph_session import GraphSession
from service.graph.joined_rows import JoinedRows
from service.graph.sparse import SparseNames, feed_with_sparse
from service.graph.table_rows import RowSource
from service.types import Array, SignatureSpec, Tensors

Feed = Callable[[Tensors], list[Array]]


@dataclass(frozen=True, slots=True)
class CutSignature:
    """A signature that was cut into lookups and a tower (the rest of its graph).

    outputs: name -> tensor of the graph.
    sources: tensor of the graph -> the source of the rows that can be fed to it.
    fed: tensors that are fed in place of all sources -> the sources whose rows the tensor holds side by side.
    id_tensors: tensors of ids that the graph computes itself, in a first run before the lookups.
    carried: other tensors of the first run that the last run is fed with.
    id_inputs, inputs: tensors of the request's inputs that the first run and the last run need.
    inputs_apart: tensors of inputs that the last run needs if each source is fed by itself.
    effects: nodes that must run although nothing reads their outputs (a check that may refuse the request, a print).
    """

    spec: SignatureSpec
    outputs: Mapping[str, str]
    sources: Mapping[str, RowSource]
    fed: Mapping[str, JoinedRows]
    id_tensors: tuple[str, ...]
    carried: tuple[str, ...]
    id_inputs: frozenset[str]
    inputs: frozenset[str]
    inputs_apart: frozenset[str]
    effects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TowerBackend:
    """The backend of signatures whose lookups were cut out of their graphs, which the native core runs.

    cuts: signature -> its parts. sparse: signature -> name of a sparse input -> the graph's three tensors of it.
    """

    session: GraphSession
    cuts: Mapping[str, CutSignature]
    sparse: Mapping[str, Mapping[str, SparseNames]]

    def close(self) -> None:
        self.session.close()


def request_feed(spec: SignatureSpec, sparse: Mapping[str, SparseNames]) -> tuple[Feed, list[str]]:
    """Returns a function that converts a request's inputs to arrays for the graph's tensors, and the tensors' names."""
    fed = tuple(sorted(spec.inputs))
    names, convert = feed_with_sparse(fed, sparse, {name: spec.inputs[name].tensor_name for name in fed})
    return lambda inputs: convert([inputs[name] for name in fed]), names
