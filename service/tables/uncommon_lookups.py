"""Computes in numpy the parts of lookups that kernels lack: max_norm, policies for empty rows, rows as stored.

Few models need these lookups, and the kernels are faster without such options.

Source: max_norm is `_clip` of TensorFlow 2.21's python/ops/embedding_ops.py with `clip_by_norm` of
python/ops/clip_ops.py; default_row is `safe_embedding_lookup_sparse` of the first; rows that are cut off are
tf.math.segment_mean's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from service.artifact.manifest import LookupFeature
from service.tables import kernels
from service.tables.kernel_codes import POLICIES
from service.tables.numpy_kernels import NO_ROW, REFUSED, flushed, product, rows_read
from service.tables.table import MappedTable
from service.types import Array

_NO_SCALES = np.empty(0, np.uint8)


class SmallTable(NamedTuple):
    """A small table with copies of the distinct rows that a feature of a request reads.

    vectors: [U, D] float32. ids: [N] int64, rows of vectors; -1 for a dropped id, U for a refused one.
    num_read_instead: number of ids outside the table that read another row by the feature's policy.
    """

    vectors: Array
    ids: Array
    num_read_instead: int

    @property
    def place(self) -> tuple[int, Array, Array, int, int]:
        """The table for the kernels: its dtype, its bytes, no scales, U and D."""
        octets = np.ascontiguousarray(self.vectors).reshape(-1).view(np.uint8)
        return kernels.FLOAT32, octets, _NO_SCALES, *self.vectors.shape


def small_table(table: MappedTable, feature: LookupFeature, ids: Array) -> SmallTable:
    """Copies the rows of [N] int64 ids into a small table, scaled down to the feature's max_norm if longer."""
    rows = _rows_read(feature, ids, table.info.vocabulary_size)
    has_row = rows >= 0
    distinct, places = np.unique(rows[has_row], return_inverse=True)
    found = np.full(ids.shape, NO_ROW, np.int64)
    found[rows == REFUSED] = distinct.size
    found[has_row] = places
    is_inside = (ids >= 0) & (ids < table.info.vocabulary_size)
    return SmallTable(bounded(table.rows(distinct), feature.max_norm), found, int((has_row & ~is_inside).sum()))


def bounded(vectors: Array, max_norm: float | None) -> Array:
    """Scales [N, D] float32 vectors with a larger norm than max_norm down to max_norm; returns all vectors.

    >>> bounded(np.array([[3, 4], [0.3, 0.4]], np.float32), 1.0).round(6).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
    """
    if max_norm is None:
        return vectors
    bound = np.float32(max_norm)
    norms = np.sqrt(np.square(flushed(vectors)).sum(axis=1, keepdims=True, dtype=np.float32))
    return flushed(product(vectors, bound) / np.maximum(norms, bound))


def with_empty_rows(
    table: MappedTable, feature: LookupFeature, combined: Array, ids: Array, splits: Array, weights: Array
) -> Array:
    """Applies the feature's policies on_empty_row and trailing_empty_rows to [B, D] combined vectors; returns them.

    A row is empty if none of its ids counts: none was sent, or all were dropped.
    """
    counts = _ids_that_count(feature, ids, splits, weights, table.info.vocabulary_size)
    if feature.on_empty_row == "nan":
        combined[counts == 0] = np.nan
    elif feature.on_empty_row == "default_row":
        combined[counts == 0] = bounded(table.rows(np.array([feature.default_row])), feature.max_norm)
    if feature.trailing_empty_rows == "cut":
        return combined[: int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0]
    return combined


def _ids_that_count(feature: LookupFeature, ids: Array, splits: Array, weights: Array, vocabulary_size: int) -> Array:
    counts = _rows_read(feature, ids, vocabulary_size) >= 0
    if feature.on_nonpositive_weight == "drop" and weights.size:
        counts &= flushed(weights) > 0
    ends = splits[1:]
    if feature.max_ids_per_row is not None:
        ends = np.minimum(ends, splits[:-1] + feature.max_ids_per_row)
    before = np.concatenate([[0], np.cumsum(counts)])
    per_row: Array = before[ends] - before[splits[:-1]]
    return per_row


def gather_stored(table: MappedTable, feature: LookupFeature, ids: Array, out: Array) -> int:
    """Copies the stored rows of [N] int64 ids into the array out [N, D]; a dropped id gives zeros.

    Returns OK, MISSING minus the number of ids without a row, or the position of the first refused id.
    """
    rows = _rows_read(feature, ids, table.info.vocabulary_size)
    refused = np.flatnonzero(rows == REFUSED)
    if refused.size:
        return int(refused[0])
    has_row = rows >= 0
    out[...] = 0
    out[has_row] = table.stored_rows(rows[has_row])
    missing = int(((ids < 0) | (ids >= table.info.vocabulary_size)).sum())
    return kernels.MISSING - missing if missing else kernels.OK


def sequence_stored(table: MappedTable, feature: LookupFeature, ids: Array, splits: Array, out: Array) -> int:
    """Copies the stored rows of ragged ids into the array out [B, L, D]; rows with fewer than L ids end in zeros.

    Returns OK, MISSING minus the number of ids without a row, or the position of the first refused id.
    """
    lengths = np.diff(splits)
    positions = np.arange(splits[0], splits[-1])
    places = positions - np.repeat(splits[:-1], lengths)
    is_read = places < out.shape[1]
    vectors = np.zeros((int(is_read.sum()), out.shape[2]), out.dtype)
    stopped = gather_stored(table, feature, ids[positions[is_read]], vectors)
    if stopped >= 0:
        return int(positions[is_read][stopped])
    out[...] = 0
    out[np.repeat(np.arange(lengths.size), lengths)[is_read], places[is_read]] = vectors
    return stopped


def _rows_read(feature: LookupFeature, ids: Array, vocabulary_size: int) -> Array:
    """Returns the [N] int64 row numbers that ids read by the feature's policy for bad ids.

    NO_ROW or REFUSED for an id without a row.
    """
    return rows_read(ids, vocabulary_size, POLICIES[feature.on_bad_id], feature.default_row)[0]
