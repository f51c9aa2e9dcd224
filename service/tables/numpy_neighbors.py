"""Finds nearest rows with numpy: for float64 tables, for servers without the native core, and for tests of the core."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from service.tables.kernel_codes import COSINE, L2
from service.tables.numpy_kernels import StoredRows
from service.types import Array

# Number of a table's rows that a search for nearest rows compares with its queries at a time.
_CHUNK_ROWS = 4096


def neighbors(
    dtype: int,
    stored: Array,
    scales: Array,
    vocabulary_size: int,
    dim: int,
    queries: Array,
    own: Array,
    metric: int,
    listed: Array | None,
    denied: Array,
    threads: int,
    seconds: float,
    ids: Array,
    scores: Array,
) -> bool:
    """Writes the ids and scores of each query's nearest rows, the nearest first, then -1 and NaN.

    Of rows with the same score the one with the smaller id comes first. A row whose score is NaN is no neighbour.

    Args:
      dtype, stored, scales, vocabulary_size, dim: the table, as in numpy_kernels.
      queries: [Q, D] float32. own: [Q] int64, a row that is no neighbour of the query; -1 for none.
      metric: DOT; COSINE, 0 for a vector of length 0; or L2, the squared distance.
      listed: [N] int64, the only rows that may be neighbours, ascending and in the table; None: all.
      denied: [N] int64, rows that may not be, ascending.
      threads: not used here. seconds: time after which the search gives up and returns False.
      ids, scores: [Q, k] int64 and float32, written.
    """
    rows = StoredRows(dtype, stored, scales, vocabulary_size, dim).rows
    return nearest(rows, vocabulary_size, queries, own, metric, listed, denied, seconds, ids, scores)


def nearest(
    rows: Callable[[Array], Array],
    vocabulary_size: int,
    queries: Array,
    own: Array,
    metric: int,
    listed: Array | None,
    denied: Array,
    seconds: float,
    ids: Array,
    scores: Array,
) -> bool:
    """Writes each query's nearest rows, as neighbors() does; `rows` reads the table: [N] ids -> [N, D] float32."""
    until_s = time.monotonic() + seconds
    num_queries, k = ids.shape
    candidates = np.arange(vocabulary_size) if listed is None else listed
    candidates = np.setdiff1d(candidates, denied, assume_unique=True)
    best_ids: list[Array] = [np.empty(0, np.int64)] * num_queries
    best: list[Array] = [np.empty(0, np.float32)] * num_queries
    for start in range(0, candidates.size, _CHUNK_ROWS):
        if time.monotonic() >= until_s:
            return False
        chunk = candidates[start : start + _CHUNK_ROWS]
        for query, found in enumerate(_scores(rows(chunk), queries, metric)):
            is_neighbor = ~np.isnan(found) & (chunk != own[query])
            all_ids = np.concatenate([best_ids[query], chunk[is_neighbor]])
            all_scores = np.concatenate([best[query], found[is_neighbor]])
            distances = all_scores if metric == L2 else -all_scores
            if distances.size > k > 0:
                # Only rows as near as the k-th nearest are sorted: a sort of all rows took most of a search's time.
                near = np.flatnonzero(distances <= np.partition(distances, k - 1)[k - 1])
                all_ids, all_scores, distances = all_ids[near], all_scores[near], distances[near]
            order = np.lexsort((all_ids, distances))[:k]
            best_ids[query], best[query] = all_ids[order], all_scores[order]
    ids.fill(-1)
    scores.fill(np.nan)
    for query in range(num_queries):
        ids[query, : best_ids[query].size] = best_ids[query]
        scores[query, : best[query].size] = best[query]
    return True


def _scores(rows: Array, queries: Array, metric: int) -> Array:
    """Returns [Q, N] float32 scores."""
    with np.errstate(invalid="ignore", over="ignore"):
        if metric == L2:
            return np.stack([np.square(rows - query).sum(axis=1, dtype=np.float32) for query in queries])
        if metric == COSINE:
            rows, queries = _unit(rows), _unit(queries)
        products: Array = queries @ rows.T
        return products


def _unit(vectors: Array) -> Array:
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    # A vector of zeros is divided by 1, so it stays zero; a vector with a NaN keeps the NaN.
    found: Array = vectors / np.where(lengths > 0, lengths, np.float32(1))
    return found
