"""Computes the rows that are fed to a graph in place of its lookups: rows of mapped tables, single or combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.artifact.manifest import LookupFeature
from service.errors import IdOutOfRange, InvalidRequest
from service.types import Array, Table, Tensors, Vocabulary


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim by the manifest that must be proven: a feature's lookup in a mapped table equals a tensor of the graph.

    is_described: the manifest describes the feature for this signature, so engine.validation has refused ids without a
      row.
    vocabulary: maps the keys in the feature's input, and lookup does so too; None: the input holds ids.
    keys: some of the vocabulary's keys, enough to tell it from another vocabulary.
    """

    feature: LookupFeature
    table: str
    lookup: Callable[[Tensors], Array]
    is_described: bool
    vocabulary: Vocabulary | None = None
    keys: Array | None = None

    @property
    def is_single(self) -> bool:
        """Whether the feature's lookup only reads one row for each id, without a combiner, max_norm or wrapped ids."""
        feature = self.feature
        return feature.row_splits is None and feature.max_norm is None and feature.on_bad_id != "wrap"


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A source of rows: a whole feature's lookup, whose rows the kernels combine."""

    claim: Claim
    table: Table

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of the vectors for one row of a request: [D], or [L, D] for a sequence."""
        length, dim = self.claim.feature.max_sequence_length, self.table.info.embedding_dim
        return (dim,) if length is None else (length, dim)

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns a request's ids for a feature that reads one row per id; raises InvalidRequest for unknown keys."""
        name = self.claim.feature.ids
        vocabulary = self.claim.vocabulary
        return inputs[name] if vocabulary is None else vocabulary.ids_of(inputs[name], name)

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the feature's combined rows: [B, D] float32, [B, L, D] for a sequence; raises InvalidRequest."""
        try:
            return self.claim.lookup(inputs)
        except IdOutOfRange as error:
            if self.claim.is_described or self.claim.vocabulary is not None:
                raise
            raise out_of_table(inputs[self.claim.feature.ids], self.table) from error


@dataclass(frozen=True, slots=True)
class InputRows:
    """A source of rows: the table row of each id in one input of the request.

    row_shape: (D,), or (K, D) for ids of shape [B, K]; None if K differs between requests.
    """

    input_name: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids in one input of the request; the array may have any shape."""
        return inputs[self.input_name]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the table rows of the input's ids, [..., D] in the table's dtype; raises InvalidRequest."""
        return rows_of(inputs[self.input_name], self.table)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A source of rows: the table row of each id that the graph itself computes, from tf.Examples or from keys.

    tensor: the graph's tensor of the ids.
    row_shape: as in InputRows.
    """

    tensor: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids that the graph has computed; the array may have any shape."""
        return computed[self.tensor]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the table's rows of the ids that the graph has computed, [..., D]; raises InvalidRequest."""
        return rows_of(computed[self.tensor], self.table)


RowSource = FeatureRows | InputRows | ComputedRows


def numpy_dtype(table: Table) -> np.dtype[Any]:
    """Returns the numpy dtype in which a table's rows are fed to a graph: the dtype that the table stores."""
    if table.info.dtype == "bfloat16":
        from ml_dtypes import bfloat16

        found: np.dtype[Any] = np.dtype(bfloat16)
        return found
    return np.dtype(table.info.dtype)


def rows_of(ids: Array, table: Table) -> Array:
    """Returns the stored rows of a table's ids, [..., D]; raises InvalidRequest with TensorFlow's text for a gather."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    try:
        return table.stored_rows(flat).reshape(*ids.shape, table.info.embedding_dim)
    except IdOutOfRange as error:
        raise out_of_table(ids, table) from error


def out_of_table(ids: Array, table: Table) -> InvalidRequest:
    """Returns an error with the text of TensorFlow's gather, for the first id that has no row in the table.

    Source: tensorflow/core/kernels/{gather_op,resource_variable_ops}.cc, "indices... is not in" (2.21).
    """
    size = table.info.vocabulary_size
    place = np.argwhere((ids < 0) | (ids >= size))[0]
    brackets = f"[{','.join(map(str, place))}]" if ids.ndim else ""
    return IdOutOfRange(f"indices{brackets} = {ids[tuple(place)]} is not in [0, {size})")
