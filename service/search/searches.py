"""Runs searches for nearest rows: checks the request, finds its rows, and compares them in threads of their own.

The native core queues searches, and refuses those that would wait too long. Of each wire, it forwards twice as many
at a time as there are threads.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from threading import get_ident
from typing import TypeVar

import numpy as np

from service.artifact.row_labels import MAX_SHOWN, RowLabels
from service.errors import DeadlineExceeded, IdOutOfRange, IdsTooMany, InputMismatch, NotReady
from service.search.neighbor_indexes import Indexing, LeaseVersion, NeighborIndexes
from service.types import Array, TableInfo
from service.versions.neighbors import (
    MAX_K,
    MAX_QUERIES,
    Named,
    Nearest,
    NeighborAnswer,
    NeighborLimits,
    NeighborQuery,
    RowIndex,
    RowSearch,
    SearchedTable,
    TableKeys,
)
from service.versions.servable import Servable
from service.versions.threads import Workers

T = TypeVar("T")

# Maximum number of ids or keys in each filter of a search: in the list of allowed rows, and in the list of denied rows.
MAX_FILTER_IDS = 1_000_000
# Largest k of a search that uses an index. An index is built to find the ten nearest rows; a search for many more
# neighbours compares all rows.
MAX_INDEXED_K = 100
# Longest time of a search whose request has no earlier deadline (seconds).
MAX_SEARCH_S = 30.0

_NO_IDS = np.empty(0, np.int64)
_QUERIES = "The number of queries (ids, keys, labels or vectors)"


def find_neighbors(
    servable: Servable,
    table: SearchedTable,
    query: NeighborQuery,
    index: RowIndex | None,
    *,
    seconds: float,
    threads: int,
) -> NeighborAnswer:
    """Runs a search in a table of a servable, on which the caller has a lease.

    Args:
      index: the table's index; None: the search compares all rows.

    Raises:
      InputMismatch, IdOutOfRange, IdsTooMany: the request does not fit the table, or is over a limit.
      DeadlineExceeded, Unimplemented: as SearchedTable.nearest.
    """
    info = table.info
    keys = servable.keys.get(info.name, _NoKeys(info.name))
    labels = servable.labels_of(info.name)
    if query.labels is not None:
        query = replace(query, labels=None, rows=Named(_rows_labelled(info.name, query.labels, labels)))
    _check_size('"k"', query.k, MAX_K)
    queries, own = _vectors(table, query, keys)
    for named in (query.allowed, query.denied):
        _check_size('"filter"', named.size, MAX_FILTER_IDS, least=0)
    allowed = _row_numbers(info, query.allowed, query.feature, keys) if query.allowed.is_given else None
    denied = _row_numbers(info, query.denied, query.feature, keys)
    if allowed is not None:
        allowed = np.setdiff1d(allowed, denied, assume_unique=True)
    # k is cut to the number of the table's rows, so that a large k does not make the server allocate large arrays.
    k = min(query.k, info.vocabulary_size)
    search = RowSearch(queries, own, k, query.metric, allowed, denied, seconds, threads)
    if index is None:
        found = table.nearest(search)
        scanned = info.vocabulary_size if allowed is None else int(allowed.size)
    else:
        found, scanned = _nearest_by_index(table, search, index)
    recall = None if index is None else index.recall
    names = keys.keys_of(found.ids, query.feature)
    shown = [labels.of(row.tolist()) for row in found.ids] if query.wants_labels else None
    return NeighborAnswer(*found, names, servable.version, scanned, recall, shown)


def _rows_labelled(table: str, wanted: Sequence[str], labels: RowLabels) -> Array:
    _check_size(_QUERIES, len(wanted), MAX_QUERIES)
    rows = []
    for label in wanted:
        if (row := labels.row_of(label)) is None:
            raise IdOutOfRange(f'table "{table}": no row has the label "{label[:MAX_SHOWN]}".{labels.near(label)}')
        rows.append(row)
    return np.array(rows, np.int64)


def _nearest_by_index(table: SearchedTable, search: RowSearch, index: RowIndex) -> tuple[Nearest, int]:
    """Returns the nearest of the rows that an index names and of all changed rows, and the number of compared rows.

    If a query finds fewer than k rows in this way, the query is compared with all rows.
    """
    end_s = time.monotonic() + search.seconds
    changed = table.changed_rows()
    parts, scanned = [], 0
    for place, named in enumerate(index.candidates(search.queries)):
        one = slice(place, place + 1)
        candidates = np.union1d(named, changed) if changed.size else named
        seconds = max(end_s - time.monotonic(), 0.0)
        asked = replace(search, queries=search.queries[one], own=search.own[one], allowed=candidates, seconds=seconds)
        found = table.nearest(asked)
        scanned += candidates.size
        if found.ids[0, -1] < 0:
            found = table.nearest(replace(asked, allowed=None))
            scanned += table.info.vocabulary_size
        parts.append(found)
    return Nearest(np.concatenate([one.ids for one in parts]), np.concatenate([one.scores for one in parts])), scanned


def _vectors(table: SearchedTable, query: NeighborQuery, keys: TableKeys) -> tuple[Array, Array]:
    """Returns the queries, [Q, D] float32, and the row that each query leaves out of its answer, [Q]; -1: none."""
    info = table.info
    if (query.vectors is None) == (not query.rows.is_given):
        raise InputMismatch('A search has one of "ids", "keys", "vectors" and "labels".')
    if query.vectors is None:
        _check_size(_QUERIES, query.rows.size, MAX_QUERIES)
        ids = _ids(query.rows, query.feature, keys)
        rows = table.rows(ids)
        return rows, np.full_like(ids, -1) if query.include_self else ids
    vectors = query.vectors
    if vectors.ndim != 2 or vectors.shape[1] != info.embedding_dim:
        raise InputMismatch(
            f'input "vectors": shape {list(vectors.shape)}, a row of table "{info.name}" has {info.embedding_dim} '
            "numbers: send one list of as many numbers for each query."
        )
    _check_size(_QUERIES, vectors.shape[0], MAX_QUERIES)
    if not np.isfinite(vectors).all():
        raise InputMismatch('input "vectors": a number is NaN or infinite.')
    return np.ascontiguousarray(vectors, np.float32), np.full(vectors.shape[0], -1, np.int64)


def _check_size(what: str, size: int, most: int, least: int = 1) -> None:
    if size > most:
        raise IdsTooMany(f"{what} is {size}, the limit is {most} per request.")
    if size < least:
        raise InputMismatch(f"{what} is {size}, the least is {least}.")


def _ids(named: Named, feature: str, keys: TableKeys) -> Array:
    parts = [] if named.ids is None else [named.ids]
    if named.keys is not None:
        parts.append(keys.ids_of(named.keys, feature) if named.keys.size else _NO_IDS)
    return np.ascontiguousarray(np.concatenate(parts or [_NO_IDS]), np.int64)


def _row_numbers(info: TableInfo, named: Named, feature: str, keys: TableKeys) -> Array:
    """Returns the ids of a filter, ascending and each once; ids outside the table name no row, and are left out."""
    found = np.unique(_ids(named, feature, keys))
    return found[(found >= 0) & (found < info.vocabulary_size)]


class _NoKeys:
    """A null object for the keys of a table without a vocabulary: it refuses requests that send keys."""

    def __init__(self, table: str) -> None:
        self._table = table

    def ids_of(self, keys: Array, feature: str) -> Array:
        raise InputMismatch(f'table "{self._table}" has no vocabulary: send ids.')

    def keys_of(self, ids: Array, feature: str) -> Array | None:
        return None


class Searches:
    """The object that runs all searches for nearest rows, in a thread pool of its own. Concurrency: any thread."""

    def __init__(
        self, limits: NeighborLimits, clock: Callable[[], float], lease: LeaseVersion, indexing: Indexing | None
    ) -> None:
        self.indexes = NeighborIndexes(indexing, lease, limits.index_rows)
        self._threads = limits.threads
        self._clock = clock
        self._pool = Workers(limits.threads, "neighbors")
        # One entry for each running search: the length of the deque is the number of searches, and needs no lock.
        self._running: deque[None] = deque()
        self._scanned: dict[tuple[int, str], int] = {}

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs a search in a thread for searches, with the context variables of the request: its id, its trace and its
        caller's grant. Raises NotReady after close().
        """
        try:
            return self._pool.submit(copy_context().run, work)
        except RuntimeError as error:
            raise NotReady("The server is shutting down.") from error

    def close(self) -> None:
        """Cancels the searches that have not begun, and ends the threads; searches that run go on to their end."""
        self.indexes.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def find(
        self, servable: Servable, table: SearchedTable, query: NeighborQuery, deadline_s: float | None
    ) -> NeighborAnswer:
        """Runs a search for nearest rows in the calling thread; raises as find_neighbors does.

        Args:
          deadline_s: the latest end, on the engine's clock; None: MAX_SEARCH_S seconds from now.
        """
        seconds = MAX_SEARCH_S if deadline_s is None else min(deadline_s - self._clock(), MAX_SEARCH_S)
        if seconds <= 0:
            raise DeadlineExceeded("The deadline passed before the request was answered.")
        self._running.append(None)
        try:
            # A search that runs alone gets all threads of the pool; searches that run at the same time share them.
            threads = max(self._threads // len(self._running), 1)
            may_use_index = not (query.exact or query.allowed.is_given or query.k > MAX_INDEXED_K)
            index = self.indexes.of(servable, table, query.metric) if may_use_index else None
            is_built = index is not None
            if index is not None and query.vectors is not None:
                index = self.indexes.of_vectors(servable, table, query.metric, index, query.vectors)
            # The rows that a filter leaves out may be the nearest ones, so that as many more rows must be found.
            index = None if index is None else index.widened(query.k + query.denied.size)
            found = find_neighbors(servable, table, query, index, seconds=seconds, threads=threads)
        finally:
            self._running.pop()
        if may_use_index and not is_built:
            self.indexes.want(servable, table, query.metric)
        key = get_ident(), servable.name
        self._scanned[key] = self._scanned.get(key, 0) + found.rows_scanned
        return found

    def forget(self, model: str) -> None:
        for key in [key for key in self._scanned.copy() if key[1] == model]:
            self._scanned.pop(key, None)

    def rows_scanned(self) -> Mapping[str, int]:
        totals: Counter[str] = Counter()
        for (_, model), count in self._scanned.copy().items():
            totals[model] += count
        return totals
