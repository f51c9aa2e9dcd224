"""Declares the sources of the rows that are fed to a graph in place of its lookups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.artifact.manifest import LookupFeature
from service.types import Array, Table, Vocabulary


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim by the manifest that must be proven: a feature's lookup in a mapped table equals a tensor of the graph.

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
    """A source of rows: a whole feature's lookup."""

    claim: Claim
    table: Table

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
    """Returns the stored rows of a table's ids, [..., D]; raises IdOutOfRange."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    return table.stored_rows(flat).reshape(*ids.shape, table.info.embedding_dim)
