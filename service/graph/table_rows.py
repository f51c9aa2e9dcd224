"""Makes the tensors that replace lookups in a tower: rows of mapped tables, one by one or combined."""

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
    """A feature's description from the manifest, and its lookup on the mapped table; the graph must agree with it.

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
        """Whether the feature reads one row per id and computes nothing with it."""
        feature = self.feature
        return feature.row_splits is None and feature.max_norm is None and feature.on_bad_id != "wrap"


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """The combined rows of a whole feature, computed by the kernels."""

    claim: Claim
    table: Table

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row of rows(): [D], or [L, D] for a sequence."""
        length, dim = self.claim.feature.max_sequence_length, self.table.info.embedding_dim
        return (dim,) if length is None else (length, dim)

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids of a feature with one row per id; raises InvalidRequest for an unknown key."""
        name = self.claim.feature.ids
        vocabulary = self.claim.vocabulary
        return inputs[name] if vocabulary is None else vocabulary.ids_of(inputs[name], name)

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the combined rows: [B, D] float32, [B, L, D] for a sequence; raises InvalidRequest."""
        try:
            return self.claim.lookup(inputs)
        except IdOutOfRange as error:
            if self.claim.is_described or self.claim.vocabulary is not None:
                raise
            raise out_of_table(inputs[self.claim.feature.ids], self.table) from error


@dataclass(frozen=True, slots=True)
class InputRows:
    """The rows of the ids in an input of the request, one for each id.

    row_shape: (D,), or (K, D) for ids of shape [B, K]; None if K differs between requests.
    """

    input_name: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids in the request's input, of any shape."""
        return inputs[self.input_name]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the rows of the input's ids, [..., D] in the table's dtype; raises InvalidRequest."""
        return rows_of(inputs[self.input_name], self.table)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """The rows of ids that the graph itself computes, from parsed examples or from keys of its own vocabulary.

    tensor: the graph's tensor of the ids.
    row_shape: as in InputRows.
    """

    tensor: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids that the graph has computed, of any shape."""
        return computed[self.tensor]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the rows of the computed ids, [..., D] in the table's dtype; raises InvalidRequest."""
        return rows_of(computed[self.tensor], self.table)


RowSource = FeatureRows | InputRows | ComputedRows


def numpy_dtype(table: Table) -> np.dtype[Any]:
    """Returns the numpy dtype in which the rows of a table are fed: the dtype of the table."""
    if table.info.dtype == "bfloat16":
        from ml_dtypes import bfloat16

        found: np.dtype[Any] = np.dtype(bfloat16)
        return found
    return np.dtype(table.info.dtype)


def rows_of(ids: Array, table: Table) -> Array:
    """Returns [..., D] stored rows of [...] ids; raises InvalidRequest in the words of TensorFlow's gather."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    try:
        return table.stored_rows(flat).reshape(*ids.shape, table.info.embedding_dim)
    except IdOutOfRange as error:
        raise out_of_table(ids, table) from error


def out_of_table(ids: Array, table: Table) -> InvalidRequest:
    """Returns TensorFlow's error for the first id without a row.

    Source: tensorflow/core/kernels/{gather_op,resource_variable_ops}.cc, "indices... is not in" (2.21).
    """
    size = table.info.vocabulary_size
    place = np.argwhere((ids < 0) | (ids >= size))[0]
    brackets = f"[{','.join(map(str, place))}]" if ids.ndim else ""
    return IdOutOfRange(f"indices{brackets} = {ids[tuple(place)]} is not in [0, {size})")
