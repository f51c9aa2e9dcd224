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
    """A feature as the manifest describes it, and its lookup on the mapped table.

    is_described: the manifest describes it for this signature, so engine.validation has refused the ids without a row.
    vocabulary: of a feature whose input holds keys, which lookup maps too; None: it holds ids.
    keys: some of its keys, enough to tell it from another vocabulary.
    """

    feature: LookupFeature
    table: str
    lookup: Callable[[Tensors], Array]
    is_described: bool
    vocabulary: Vocabulary | None = None
    keys: Array | None = None

    @property
    def is_single(self) -> bool:
        """Says whether the feature reads one row per id and computes nothing with it."""
        feature = self.feature
        return feature.row_splits is None and feature.max_norm is None and feature.on_bad_id != "wrap"


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A whole feature, combined by the kernels."""

    claim: Claim
    table: Table

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row of the rows."""
        length, dim = self.claim.feature.max_sequence_length, self.table.info.embedding_dim
        return (dim,) if length is None else (length, dim)

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids of a feature that is single; raises InvalidRequest for a key that has none."""
        name = self.claim.feature.ids
        vocabulary = self.claim.vocabulary
        return inputs[name] if vocabulary is None else vocabulary.ids_of(inputs[name], name)

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [B, D] float32, of a sequence [B, L, D]; raises InvalidRequest."""
        try:
            return self.claim.lookup(inputs)
        except IdOutOfRange as error:
            if self.claim.is_described or self.claim.vocabulary is not None:
                raise
            raise out_of_table(inputs[self.claim.feature.ids], self.table) from error


@dataclass(frozen=True, slots=True)
class InputRows:
    """A row for each id of an input.

    row_shape: D, or K and D for ids of shape [B, K]; None where K differs from request to request.
    """

    input_name: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids, of any shape."""
        return inputs[self.input_name]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [..., D] of the table's dtype; raises InvalidRequest."""
        return rows_of(inputs[self.input_name], self.table)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A row for each id that the graph itself works out: of parsed examples, of keys in its own vocabulary.

    tensor: of the ids.
    row_shape: as of InputRows.
    """

    tensor: str
    table: Table
    row_shape: tuple[int, ...] | None

    def ids(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns the ids, of any shape."""
        return computed[self.tensor]

    def rows(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [..., D] of the table's dtype; raises InvalidRequest."""
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
    """Says which id has no row, as TensorFlow does.

    Source: tensorflow/core/kernels/{gather_op,resource_variable_ops}.cc, "indices... is not in" (2.21).
    """
    size = table.info.vocabulary_size
    place = np.argwhere((ids < 0) | (ids >= size))[0]
    brackets = f"[{','.join(map(str, place))}]" if ids.ndim else ""
    return IdOutOfRange(f"indices{brackets} = {ids[tuple(place)]} is not in [0, {size})")
