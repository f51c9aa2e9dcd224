"""Finds the rows of a table that are nearest to some of its rows, by the cosine; compares all rows.

>>> import numpy as np
>>> found = nearest_rows(np.array([[1, 0], [0, 1], [2, 1], [0, 0]], np.float32), np.array([0]), 2)
>>> [(row, round(cosine, 3)) for row, cosine in found[0]]
[(2, 0.894), (1, 0.0)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from model_export.statistics.table_health import TableRows
from service.types import Array

# Number of a table's rows to compare at a time. With 2,000 queries, the cosines of one such block take 8 MB.
_BLOCK_ROWS = 1024
# Number of multiplications for one table, about half a second of a processor. Of a table for which all rows would take
# more, only some rows are searched for, but at least _MIN_QUERIES.
_MAX_PRODUCTS = 1 << 34
_MIN_QUERIES = 100

Nearest = Mapping[int, tuple[tuple[int, float], ...]]


def searched_ids(ids: Array, shape: tuple[int, ...]) -> Array:
    count = max(_MIN_QUERIES, _MAX_PRODUCTS // max(shape[0] * shape[1], 1))
    if len(ids) <= count:
        return ids
    return ids[np.linspace(0, len(ids) - 1, count).astype(np.int64)]


def nearest_rows(table: TableRows, ids: Array, k: int) -> Nearest:
    """Finds the rows nearest to each of [N] distinct ids: at most k pairs of row and cosine each, the nearest first.

    Of rows with equal cosines the smaller id comes first. A row is not its own neighbour. Rows that are not finite are
    no neighbours, and neither they nor rows of zeros have neighbours.
    """
    own = np.asarray(table[ids])
    queries = _unit(own)
    has_direction = np.isfinite(own).all(axis=1) & queries.any(axis=1)
    ids, queries = ids[has_direction], queries[has_direction]
    best_ids = np.full((len(ids), k), -1, np.int64)
    best = np.full((len(ids), k), -np.inf, np.float32)
    for start, stop in _blocks(table.shape[0]):
        rows = np.asarray(table[start:stop])
        cosines = queries @ _unit(rows).T
        cosines[:, ~np.isfinite(rows).all(axis=1)] = -np.inf
        inside = np.flatnonzero((ids >= start) & (ids < stop))
        cosines[inside, ids[inside] - start] = -np.inf
        # A candidate with the same cosine as the k-th best row so far has a larger id than that row, so it is not kept.
        at, column = np.divmod(np.flatnonzero(cosines > best[:, -1:]), stop - start)
        _keep_best(best_ids, best, at, start + column, cosines[at, column])
    return {
        row: tuple((near, cosine) for near, cosine in zip(nears, cosines, strict=True) if near >= 0)
        for row, nears, cosines in zip(ids.tolist(), best_ids.tolist(), best.tolist(), strict=True)
    }


def _keep_best(best_ids: Array, best: Array, at: Array, new_ids: Array, cosines: Array) -> None:
    # Merges candidates into the k nearest rows found so far for each query: new_ids[i] is a candidate of query at[i].
    k = best.shape[1]
    changed = np.unique(at)
    owner = np.concatenate([np.repeat(changed, k), at])
    ids = np.concatenate([best_ids[changed].ravel(), new_ids])
    scores = np.concatenate([best[changed].ravel(), cosines])
    order = np.lexsort((ids, -scores, owner))
    firsts = np.searchsorted(owner[order], changed)
    kept = order[firsts[:, None] + np.arange(k)]
    best_ids[changed], best[changed] = ids[kept], scores[kept]


def _blocks(num_rows: int) -> Iterator[tuple[int, int]]:
    # The first blocks of rows are small: most of their rows are among the nearest rows found so far, and _keep_best()
    # sorts all such rows.
    start, size = 0, 32
    while start < num_rows:
        yield start, min(start + size, num_rows)
        start += size
        size = min(2 * size, _BLOCK_ROWS)


def _unit(rows: Array) -> Array:
    # Norms are computed in float64, because the squares of large float32 numbers overflow float32.
    finite = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    unit: Array = np.divide(finite, lengths, out=np.zeros_like(finite), where=lengths > 0).astype(np.float32)
    return unit
