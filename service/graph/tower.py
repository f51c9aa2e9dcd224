"""Declares signatures that were cut into rows of tables, with their sources, and the rest of the graph (the tower).

TensorFlow loads no table: the native core feeds looked-up rows to the session in place of the graph's own reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from service.artifact.manifest import LookupFeature
from service.graph.graph_session import CoreSession
from service.graph.joined_rows import JoinedRows
from service.graph.sparse import SparseNames, feed_with_sparse
from service.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, Array, SignatureSpec, Table, Tensors, Vocabulary


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the manifest that the server checks before use: this feature's lookup equals this tensor.

    name: names the claim among those of all signatures.
    is_described: the manifest describes the feature for this signature, so the core refuses ids without a row.
    vocabulary: maps the keys in the feature's input, and the lookup does so too; None: the input holds ids.
    keys: some of the vocabulary's keys, enough to tell it from another vocabulary.
    """

    name: str
    feature: LookupFeature
    table: str
    is_described: bool
    vocabulary: Vocabulary | None = None
    keys: Array | None = None


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A source of rows: a whole feature's lookup.

    sized_by: inputs that must have as many elements as the lookup has rows; else the graph combines single rows.
    """

    claim: Claim
    table: Table
    sized_by: tuple[str, ...]

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of the vectors for one row of a request: [D], or [L, D] for a sequence."""
        length, dim = self.claim.feature.max_sequence_length, self.table.info.embedding_dim
        return (dim,) if length is None else (length, dim)


@dataclass(frozen=True, slots=True)
class InputRows:
    """A source of rows: the table row of each id in one input of the request.

    row_shape: (D,), or (K, D) for ids of shape [B, K]; None if K differs between requests.
    """

    input_name: str
    table: Table
    row_shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A source of rows: the table row of each id that the graph itself computes, from tf.Examples or from keys.

    tensor: the graph's tensor of the ids.
    row_shape: as in InputRows.
    """

    tensor: str
    table: Table
    row_shape: tuple[int, ...] | None


RowSource = FeatureRows | InputRows | ComputedRows


def rows_of(ids: Array, table: Table) -> Array:
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    return table.stored_rows(flat).reshape(*ids.shape, table.info.embedding_dim)


Feed = Callable[[Tensors], list[Array]]


@dataclass(frozen=True, slots=True)
class CutSignature:
    """A signature that was cut into lookups and a tower (the rest of its graph).

    outputs: name -> tensor of the graph.
    sources: tensor of the graph -> the source of the rows that can be fed to it.
    fed: tensors that are fed in place of all sources -> the sources whose rows the tensor holds side by side.
    apart: the sources that are fed by themselves to requests of other shapes; single rows where a source is sized_by.
    id_tensors: tensors of ids that the graph computes itself, in a first run before the lookups.
    carried: other tensors of the first run that the last run is fed with.
    id_inputs, inputs: tensors of the request's inputs that the first run and the last run need.
    inputs_apart: tensors of inputs that the last run needs for requests of other shapes.
    effects: nodes that must run although nothing reads their outputs (a check that may refuse the request, a print).
    """

    spec: SignatureSpec
    outputs: Mapping[str, str]
    sources: Mapping[str, RowSource]
    fed: Mapping[str, JoinedRows]
    apart: Mapping[str, RowSource]
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

    session: CoreSession
    cuts: Mapping[str, CutSignature]
    sparse: Mapping[str, Mapping[str, SparseNames]]

    def close(self) -> None:
        self.session.close()


def part_of(
    spec: SignatureSpec, sparse: Mapping[str, SparseNames], names: Collection[str]
) -> tuple[SignatureSpec, dict[str, SparseNames]]:
    inputs = {name: tensor for name, tensor in spec.inputs.items() if name in names}
    ragged = tuple(one for one in spec.ragged_names if one.values in inputs and one.row_splits in inputs)
    kept = {key: one for key, one in sparse.items() if {key + VALUES_SUFFIX, key + ROW_SPLITS_SUFFIX} <= inputs.keys()}
    return replace(spec, inputs=inputs, ragged_names=ragged), kept


def request_feed(spec: SignatureSpec, sparse: Mapping[str, SparseNames]) -> tuple[Feed, list[str]]:
    fed = tuple(sorted(spec.inputs))
    names, convert = feed_with_sparse(fed, sparse, {name: spec.inputs[name].tensor_name for name in fed})
    return lambda inputs: convert([inputs[name] for name in fed]), names
