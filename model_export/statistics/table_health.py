"""Measures whether a table looks trained: norms of rows, and rows that hold NaN or infinity, are zero, or are equal.

>>> import numpy as np
>>> health = table_health(np.array([[3, 4], [0, 0], [np.nan, 1], [3, 4]], np.float32))
>>> health.dead.count, health.nan.first_ids, health.duplicates.first_ids, health.norms.median
(1, (2,), (3,), 5.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from service.types import Array

# Size of a chunk of rows in float64: large enough that numpy's cost per call is small, and small compared with free
# memory.
_CHUNK_BYTES = 16 << 20
_MAX_BINS = 40
_FIRST_IDS = 10
# A row counts as near zero if its norm is below this share of the median norm: such a row hardly changes a mean.
_NEAR_ZERO = 0.01
# Largest number of rows among which equal rows are searched; the search needs 24 bytes of memory per row.
_MAX_ROWS_FOR_DUPLICATES = 50_000_000
_PERCENTILES = (1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0)

Progress = Callable[[int, int], None]


class TableRows(Protocol):
    """The interface of a [V, D] matrix whose rows can be read: an array, mapped or not, or the parts of a table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The table's size, (V, D)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the table's rows, which is a float type."""

    def __getitem__(self, rows: Any, /) -> Array: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of rows of a table: the number of rows, and the ids of the first ten."""

    count: int = 0
    first_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Norms:
    """Statistics of the Euclidean norms of all finite rows, including rows of zeros.

    percentiles: (p, norm) for p = 1, 5, 25, 50, 75, 95, 99, interpolated linearly.
    """

    minimum: float
    mean: float
    maximum: float
    percentiles: tuple[tuple[float, float], ...]

    @property
    def median(self) -> float:
        return dict(self.percentiles)[50.0]


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of norms: counts[i] norms lie in [edges[i], edges[i + 1]); the last bin includes its upper edge.

    above: number of norms beyond the last edge, a few outliers that would squeeze all others into one bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    above: int = 0


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The health of a [V, D] table, measured by reading every row.

    norms, histogram: None where no row is finite.
    nan, inf: rows with at least one such number; nan_values, inf_values: number of such numbers.
    dead: rows of zeros only, which add nothing to a lookup: initialized to zeros and never trained, or reset.
    near_zero: rows that are not dead, with a norm below 1% of the median norm.
    duplicates: rows other than dead ones that equal an earlier row bit for bit: with a constant initializer, rows that
        were never trained. None for a table of more than 50 million rows, in which they are not searched.
    """

    rows: int
    dim: int
    norms: Norms | None
    histogram: Histogram | None
    nan: Rows
    nan_values: int
    inf: Rows
    inf_values: int
    dead: Rows
    near_zero: Rows
    duplicates: Rows | None

    @property
    def is_finite(self) -> bool:
        return not self.nan.count and not self.inf.count


def table_health(table: TableRows, *, progress: Progress = lambda done, rows: None) -> TableHealth:
    """Computes the health of a table by reading it once, in chunks.

    Args:
      table: [V, D] of a float type, perhaps mapped and unaligned; V and D at least 1.
      progress: called with (rows done, V) after each chunk.

    Memory: one chunk of 16 MiB in float64, and 8 bytes per row (24 while equal rows are searched).
    """
    rows, dim = table.shape
    norms = np.empty(rows)
    hashes = np.empty(rows, np.uint64) if rows <= _MAX_ROWS_FOR_DUPLICATES else None
    factors = _hash_factors(table)
    nan_ids, inf_ids, dead_ids = _Ids(), _Ids(), _Ids()
    nan_values = inf_values = 0
    for start, stop in row_chunks(rows, dim):
        chunk = np.ascontiguousarray(table[start:stop])
        values = chunk.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.sqrt(np.einsum("ij,ij->i", values, values))
        # Numbers that are NaN or infinite are counted only in rows whose norm is NaN or infinite; other rows have none.
        odd = np.flatnonzero(~np.isfinite(part))
        is_nan, is_inf = np.isnan(values[odd]), np.isinf(values[odd])
        nan_values += int(is_nan.sum())
        inf_values += int(is_inf.sum())
        nan_ids.add(start + odd[is_nan.any(axis=1)])
        inf_ids.add(start + odd[is_inf.any(axis=1)])
        overflown = odd[~(is_nan | is_inf).any(axis=1)]
        part[odd] = np.nan
        part[overflown] = _large_norms(values[overflown])
        zero = np.flatnonzero(part == 0)
        dead_ids.add(start + zero[~values[zero].any(axis=1)])
        norms[start:stop] = part
        if hashes is not None:
            hashes[start:stop] = _row_hashes(chunk, factors)
        progress(stop, rows)
    usable = np.isfinite(norms)
    summary = _summary(norms[usable])
    near_zero = _Ids()
    if summary is not None:
        near_zero.add(np.flatnonzero((norms > 0) & (norms < _NEAR_ZERO * summary.median)))
    duplicates = None
    if hashes is not None:
        duplicates = _duplicates(table, hashes, np.flatnonzero(usable & (norms > 0)))
    return TableHealth(
        rows=rows,
        dim=dim,
        norms=summary,
        histogram=None if summary is None else _histogram(norms[usable], summary),
        nan=nan_ids.rows(),
        nan_values=nan_values,
        inf=inf_ids.rows(),
        inf_values=inf_values,
        dead=dead_ids.rows(),
        near_zero=near_zero.rows(),
        duplicates=duplicates,
    )


def row_chunks(rows: int, dim: int) -> Iterator[tuple[int, int]]:
    """Divides a table's rows into chunks of about 16 MiB in float64; yields the (start, stop) of each chunk."""
    size = max(1, _CHUNK_BYTES // (8 * max(1, dim)))
    for start in range(0, rows, size):
        yield start, min(start + size, rows)


def sample_ids(num_rows: int, *, seed: int, limit: int, candidates: Array | None = None) -> Array:
    """Draws at most `limit` distinct row ids; returns them in ascending order.

    Args:
      candidates: [N] distinct ids to draw from; None: all rows.
    """
    total = num_rows if candidates is None else len(candidates)
    if total <= limit:
        chosen = np.arange(total)
    else:
        chosen = np.random.default_rng(seed).choice(total, limit, replace=False, shuffle=False)
    return np.sort(chosen if candidates is None else np.asarray(candidates)[chosen])


def unit_rows(rows: Array) -> Array:
    """Returns rows of length 1 as float32; a row of zeros stays so, and numbers that are not finite count as 0."""
    # Norms are computed in float64, because the squares of large float32 numbers overflow float32.
    finite = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    unit: Array = np.divide(finite, lengths, out=np.zeros_like(finite), where=lengths > 0).astype(np.float32)
    return unit


def _large_norms(values: Array) -> Array:
    # Returns the norms of rows whose squares overflow, bounded so that sums and bins of norms stay finite.
    largest = np.abs(values).max(axis=1, initial=1.0, keepdims=True)
    norms = np.minimum(largest[:, 0], 1e290) * np.linalg.norm(values / largest, axis=1)
    return np.asarray(norms)


class _Ids:
    """Counter of row ids, which also keeps the first ten ids that were added to it."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[int] = []

    def add(self, ids: Array) -> None:
        self._count += len(ids)
        self._first += ids[: _FIRST_IDS - len(self._first)].tolist()

    def rows(self) -> Rows:
        return Rows(self._count, tuple(self._first))


def _summary(norms: Array) -> Norms | None:
    if not norms.size:
        return None
    found = np.percentile(norms, _PERCENTILES)
    return Norms(
        minimum=float(norms.min()),
        mean=float(norms.mean()),
        maximum=float(norms.max()),
        percentiles=tuple(zip(_PERCENTILES, found.tolist(), strict=True)),
    )


def _histogram(norms: Array, summary: Norms) -> Histogram:
    low, high = summary.minimum, summary.maximum
    if low == high:
        return Histogram((low, high), (norms.size,))
    typical = dict(summary.percentiles)[99.0]
    if high - low > 3 * (typical - low) > 0:
        high = low + 1.5 * (typical - low)
    # The number of bins follows Rice's rule, so that a table of few rows gets few bins.
    bins = min(_MAX_BINS, math.ceil(2 * norms.size ** (1 / 3)))
    counts, edges = np.histogram(norms, bins, (low, high))
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), int((norms > high).sum()))


def _hash_factors(table: TableRows) -> Array:
    # Any fixed odd factors would do, because rows with equal hashes are compared byte by byte afterwards.
    num_bytes = table.shape[1] * table.dtype.itemsize
    words = num_bytes // _word(num_bytes).itemsize
    factors: Array = np.random.default_rng(0).integers(0, 1 << 63, words, np.uint64) * np.uint64(2) + np.uint64(1)
    return factors


def _word(num_bytes: int) -> np.dtype[np.generic]:
    return np.dtype(f"<u{next(size for size in (4, 2, 1) if num_bytes % size == 0)}")


def _row_hashes(chunk: Array, factors: Array) -> Array:
    words = chunk.view(_word(chunk.shape[1] * chunk.dtype.itemsize))
    hashes = np.zeros(len(chunk), np.uint64)
    # The hash is summed column by column: numpy's uint64 matrix product is slow, and an elementwise product would copy
    # the whole chunk.
    for column, factor in enumerate(factors):
        hashes += words[:, column] * factor
    return hashes


def _duplicates(table: TableRows, hashes: Array, ids: Array) -> Rows:
    order = ids[np.argsort(hashes[ids], kind="stable")]
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]) + 1
    if not same.size:
        return Rows()
    # The sort is stable, so rows of equal hash stay in order of id, and the first row of each group has the smallest
    # id.
    starts = np.ones(len(order), bool)
    starts[same] = False
    first = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))[same]]
    found = [
        order[same[start:stop]][(_bits(table, order[same[start:stop]]) == _bits(table, first[start:stop])).all(axis=1)]
        for start, stop in row_chunks(len(same), table.shape[1])
    ]
    duplicates = _Ids()
    duplicates.add(np.sort(np.concatenate(found)))
    return duplicates.rows()


def _bits(table: TableRows, ids: Array) -> Array:
    return np.ascontiguousarray(table[ids]).view(np.uint8)
