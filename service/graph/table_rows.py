"""What is fed to a tower in place of a lookup: rows of mapped tables, one by one or combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from service.core.errors import IdOutOfRange, InvalidRequest
from service.core.manifest import LookupFeature
from service.core.types import Array, Table, Tensors


@dataclass(frozen=True, slots=True)
class Claim:
    """What a manifest says of a feature, and the lookup that does it on the mapped table.

    is_described: it says so of this very signature, so that core.validation has refused ids which that policy refuses.
    """

    feature: LookupFeature
    table: str
    lookup: Callable[[Tensors], Array]
    is_described: bool


class RowSource(Protocol):
    """Gives the rows of a request. Concurrency: any thread."""

    def __call__(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns float32; computed: tensor of the graph -> the ids that it holds. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A whole feature, combined by the kernels."""

    claim: Claim
    table: Table

    def __call__(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [B, D], of a sequence [B, L, D]."""
        try:
            return self.claim.lookup(inputs)
        except IdOutOfRange as error:
            if self.claim.is_described:
                raise
            raise out_of_table(inputs[self.claim.feature.ids], self.table) from error


@dataclass(frozen=True, slots=True)
class InputRows:
    """A row for each id of an input."""

    input_name: str
    table: Table

    def __call__(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [..., D]."""
        return rows_of(inputs[self.input_name], self.table)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A row for each id that the graph itself works out: of parsed examples, of keys in its own vocabulary."""

    ids: str
    table: Table

    def __call__(self, inputs: Tensors, computed: Mapping[str, Array]) -> Array:
        """Returns [..., D]."""
        return rows_of(computed[self.ids], self.table)


def rows_of(ids: Array, table: Table) -> Array:
    """Returns [..., D] rows of [...] ids; raises InvalidRequest in the words of TensorFlow's gather."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    try:
        return table.rows(flat).reshape(*ids.shape, table.info.embedding_dim)
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
