"""Runs searches for nearest rows: checks the request, finds its rows, and compares them in threads of their own.

A queue without a bound makes all requests wait under overload, until each client has given up. So the pool of threads
refuses searches that would not run in time, and drops queued ones whose time is over before they cost anything.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import get_ident
from typing import Any

import numpy as np

from service.admission import Admission, NeighborLimits, Reason, has_share
from service.artifact.row_labels import RowLabels
from service.errors import DeadlineExceeded, IdOutOfRange, IdsTooMany, InputMismatch, NotReady, Overloaded, ServiceError
from service.search.neighbor_indexes import Indexing, LeaseVersion, NeighborIndexes
from service.types import Array, TableInfo
from service.versions.neighbors import (
    Named,
    Nearest,
    NeighborAnswer,
    NeighborQuery,
    RowIndex,
    RowSearch,
    SearchedTable,
    TableKeys,
)
from service.versions.servable import Servable

# A job's function. It is called once, or never if the job was cancelled. With an error, the job's time has passed, and
# the function must only raise or answer the error.
Work = Callable[[ServiceError | None], Any]

# A model's average run time is a moving average, in which the newest run has the weight 1 / _NEWEST. The newest run
# counts as at most twice the average plus _MOST_S, because a single run may wait for a graph to load.
_NEWEST = 4
_MOST_S = 1e-3
# A job fails with Overloaded if it has waited this many times limits.wait_s (the longest expected wait with which jobs
# are admitted) and other jobs wait behind it.
_PATIENCE = 4


class Job(Future[Any]):
    """A job in a pool of threads.

    deadline_s: time on the pool's clock by which the job must have begun; None: no limit.
    """

    def __init__(self, pool: Workers, model: str, work: Work, deadline_s: float | None, queued_s: float) -> None:
        super().__init__()
        self._pool = pool
        self.model = model
        self.work = work
        self.deadline_s = deadline_s
        self.queued_s = queued_s

    def cancel(self) -> bool:
        """Cancels the job unless it has begun, and removes it from the thread pool's queue at once."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._pool.forget(self)
        return is_cancelled


class Workers:
    """A pool of threads with a bounded queue. Concurrency: any thread.

    Args:
      admission: has the limits on waiting, and the observer of refused and waiting requests.
      clock: seconds, monotonic; deadlines are on this clock.
    """

    def __init__(
        self, num_threads: int, *, name: str, admission: Admission, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_threads = num_threads
        self._name = name
        self._limits = admission.limits
        self._observer = admission.observer
        self._clock = clock
        # _waiting: model -> its waiting jobs. _turns: the models with waiting jobs; the next job is the first model's.
        self._waiting: dict[str, deque[Job]] = {}
        self._turns: deque[str] = deque()
        self._num_waiting = 0
        # _started: all threads of the pool. _num_idle: number of the pool's threads that wait for a job.
        self._started: set[threading.Thread] = set()
        self._num_idle = 0
        # Model -> average seconds of a job. Only names of configured models get here, so the dict stays small.
        self._means: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._is_closed = False
        _POOLS.add(self)

    def submit(self, model: str, work: Work, deadline_s: float | None = None) -> Job:
        """Queues a function as a job for the thread pool's threads.

        Raises:
          Overloaded: the job would wait too long, too many jobs wait, or the system can start no thread.
          NotReady: the pool is closed.
        """
        job = Job(self, model, work, deadline_s, self._clock())
        with self._lock:
            if self._is_closed:
                raise NotReady("The server is shutting down.")
            reason = self._reason_to_refuse(job)
            if reason is None and not self._is_thread_coming():
                reason = "threads"
            if reason is None:
                self._add(job)
                return job
            num_waiting = self._num_waiting
        self._observer.refused(model, reason)
        raise Overloaded(f"The server is overloaded: {num_waiting} requests wait for a thread. Try again later.")

    def forget(self, job: Job) -> None:
        with self._lock:
            jobs = self._waiting.get(job.model)
            if jobs is not None and job in jobs:
                jobs.remove(job)
                self._num_waiting -= 1
                if not jobs:
                    self._drop_turn(job.model)

    def close(self) -> None:
        """Closes the pool: cancels all jobs that have not begun; running jobs go on to their end."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify_all()
            left = [job for jobs in self._waiting.values() for job in jobs]
        for job in left:
            job.cancel()

    def join(self) -> None:
        with self._lock:
            started = list(self._started)
        for thread in started:
            thread.join()

    def _reason_to_refuse(self, job: Job) -> Reason | None:
        if self._num_waiting + len(self._started) - self._num_idle < self._num_threads:
            return None
        mine = self._waiting.get(job.model)
        num_mine = len(mine) if mine else 0
        free = self._limits.queued - self._num_waiting
        if free <= 0 or not has_share(num_mine, free):
            return "queue"
        wait_s = self._expected_wait_s(num_mine)
        # While fewer jobs wait than the pool has threads, the limit on the expected wait refuses no job, however slow
        # jobs are: otherwise a thread would be idle between two jobs. A job's own deadline may still refuse it.
        if wait_s > self._limits.wait_s and self._num_waiting >= self._num_threads:
            return "wait"
        if job.deadline_s is not None and job.queued_s + wait_s > job.deadline_s:
            return "deadline"
        return None

    def _expected_wait_s(self, num_mine: int) -> float:
        # Models take turns: a new job runs after the num_mine waiting jobs of its model, and until it has run, each
        # other model runs at most num_mine + 1 jobs.
        turns = num_mine + 1
        means = self._means
        total_s = sum(min(len(jobs), turns) * means.get(model, 0.0) for model, jobs in self._waiting.items())
        return total_s / self._num_threads

    def _add(self, job: Job) -> None:
        jobs = self._waiting.get(job.model)
        if jobs is None:
            jobs = self._waiting[job.model] = deque()
            self._turns.append(job.model)
        jobs.append(job)
        self._num_waiting += 1

    def _is_thread_coming(self) -> bool:
        """Wakes an idle thread or starts one for a new job; returns False if the pool has no thread and starts none."""
        if self._num_idle:
            # _num_idle is reduced here and not by the woken thread: before that thread runs, more jobs may come, which
            # must wake other threads.
            self._num_idle -= 1
            self._has_work.notify()
        elif len(self._started) < self._num_threads:
            # The pool's threads are daemon threads: at exit the interpreter joins all other threads before it runs
            # _end_all(), and an idle thread of the pool ends only when _end_all() tells it to.
            thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._started)}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                pass
            else:
                self._started.add(thread)
        return bool(self._started)

    def _drop_turn(self, model: str) -> None:
        del self._waiting[model]
        self._turns.remove(model)

    def _next_job(self) -> Job | None:
        """Waits for the thread pool's next job and removes it from the queue; None if the calling thread shall end."""
        with self._lock:
            while not self._turns:
                if self._is_closed:
                    return None
                self._num_idle += 1
                self._has_work.wait()
            model = self._turns[0]
            jobs = self._waiting[model]
            job = jobs.popleft()
            self._num_waiting -= 1
            if jobs:
                self._turns.rotate(-1)
            else:
                self._drop_turn(model)
            return job

    def _run(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                if job.set_running_or_notify_cancel():
                    self._do(job)
                # The reference to the finished job is dropped: it would keep the job's answer, and the tables of the
                # version that it used, while this thread waits for the next job.
                del job
        finally:
            # The pool forgets a thread even if the thread ended for lack of memory, so that the next submit() can start
            # another one.
            with self._lock:
                self._started.remove(threading.current_thread())

    def _do(self, job: Job) -> None:
        started_s = self._clock()
        waited_s = started_s - job.queued_s
        error = self._why_late(job, started_s, waited_s)
        try:
            result = job.work(error)
        except BaseException as caught:
            job.set_exception(caught)
        else:
            job.set_result(result)
        if error is None:
            self._observer.waited(job.model, waited_s)
            self._learn(job.model, self._clock() - started_s)

    def _why_late(self, job: Job, now_s: float, waited_s: float) -> ServiceError | None:
        if job.deadline_s is not None and now_s >= job.deadline_s:
            self._observer.refused(job.model, "deadline")
            return DeadlineExceeded("The deadline passed before the request was answered.")
        # Run times vary, so a job may have waited far longer than was expected when it was admitted: if other jobs wait
        # behind it, it fails with Overloaded.
        if waited_s > _PATIENCE * self._limits.wait_s and self._num_waiting:
            self._observer.refused(job.model, "wait")
            return Overloaded(f"The server is overloaded: the request waited {waited_s:.3f} s for a thread.")
        return None

    def _learn(self, model: str, run_s: float) -> None:
        mean_s = self._means.get(model, 0.0)
        with self._lock:
            self._means[model] = mean_s + (min(run_s, 2 * mean_s + _MOST_S) - mean_s) / _NEWEST


_POOLS: weakref.WeakSet[Workers] = weakref.WeakSet()


def _end_all() -> None:
    # The process waits for running jobs at its exit: the interpreter would else free objects that TensorFlow's threads
    # still use.
    pools = list(_POOLS)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


atexit.register(_end_all)

# Maximum number of ids or keys in each filter of a search: in the list of allowed rows, and in the list of denied rows.
MAX_FILTER_IDS = 1_000_000
# Largest k of a search that uses an index. An index is built to find the ten nearest rows; a search for many more
# neighbours compares all rows.
MAX_INDEXED_K = 100
# Longest time of a search whose request has no earlier deadline (seconds).
MAX_SEARCH_S = 30.0

_NO_IDS = np.empty(0, np.int64)


def find_neighbors(
    servable: Servable,
    table: SearchedTable,
    query: NeighborQuery,
    limits: NeighborLimits,
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
        query = replace(query, labels=None, rows=Named(_rows_labelled(info.name, query.labels, labels, limits.queries)))
    _check_size("k", query.k, limits.k)
    queries, own = _vectors(table, query, keys, limits.queries)
    for named in (query.allowed, query.denied):
        _check_size("filter", named.size, MAX_FILTER_IDS, least=0)
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


def _rows_labelled(table: str, wanted: Sequence[str], labels: RowLabels, most: int) -> Array:
    _check_size("queries", len(wanted), most)
    rows = []
    for label in wanted:
        if (row := labels.row_of(label)) is None:
            near = ", ".join(f'"{one}"' for one in labels.of(labels.find(label, 3)))
            raise IdOutOfRange(
                f'table "{table}": no row has the label "{label[:100]}".' + (f" There are: {near}." if near else "")
            )
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


def _vectors(table: SearchedTable, query: NeighborQuery, keys: TableKeys, max_queries: int) -> tuple[Array, Array]:
    """Returns the queries, [Q, D] float32, and the row that each query leaves out of its answer, [Q]; -1: none."""
    info = table.info
    if (query.vectors is None) == (not query.rows.is_given):
        raise InputMismatch('A search has one of "ids", "keys", "vectors" and "labels".')
    if query.vectors is None:
        _check_size("queries", query.rows.size, max_queries)
        ids = _ids(query.rows, query.feature, keys)
        rows = table.rows(ids)
        return rows, np.full_like(ids, -1) if query.include_self else ids
    vectors = query.vectors
    if vectors.ndim != 2 or vectors.shape[1] != info.embedding_dim:
        raise InputMismatch(
            f'input "vectors": shape {list(vectors.shape)}, a row of table "{info.name}" has {info.embedding_dim} '
            "numbers: send one list of as many numbers for each query."
        )
    _check_size("queries", vectors.shape[0], max_queries)
    if not np.isfinite(vectors).all():
        raise InputMismatch('input "vectors": a number is NaN or infinite.')
    return np.ascontiguousarray(vectors, np.float32), np.full(vectors.shape[0], -1, np.int64)


def _check_size(what: str, size: int, most: int, least: int = 1) -> None:
    if size > most:
        raise IdsTooMany(f'"{what}" is {size}, the limit is {most} per request.')
    if size < least:
        raise InputMismatch(f'"{what}" is {size}, the least is {least}.')


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
    """The object that runs all searches for nearest rows, in a thread pool of its own. Concurrency: any thread.

    pool: runs the searches, so that no thread that answers lookups waits for one.
    """

    def __init__(
        self,
        limits: NeighborLimits,
        admission: Admission,
        clock: Callable[[], float],
        lease: LeaseVersion,
        indexing: Indexing | None,
    ) -> None:
        self.indexes = NeighborIndexes(indexing, lease, limits.index_rows)
        self._limits = limits
        self._clock = clock
        self.pool = Workers(limits.threads, name="neighbors", admission=admission, clock=clock)
        # One entry for each running search: the length of the deque is the number of searches, and needs no lock.
        self._running: deque[None] = deque()
        self._scanned: dict[tuple[int, str], int] = {}

    def find(
        self, servable: Servable, table: SearchedTable, query: NeighborQuery, deadline_s: float | None
    ) -> NeighborAnswer:
        """Runs a search for nearest rows in the calling thread; raises as find_neighbors does.

        Args:
          deadline_s: the latest end, on the engine's clock; None: MAX_SEARCH_S seconds from now.
        """
        seconds = MAX_SEARCH_S if deadline_s is None else min(deadline_s - self._clock(), MAX_SEARCH_S)
        self._running.append(None)
        try:
            # A search that runs alone gets all threads of the pool; searches that run at the same time share them.
            threads = max(self._limits.threads // len(self._running), 1)
            may_use_index = not (query.exact or query.allowed.is_given or query.k > MAX_INDEXED_K)
            index = self.indexes.of(servable, table, query.metric) if may_use_index else None
            is_built = index is not None
            if index is not None and query.vectors is not None:
                index = self.indexes.of_vectors(servable, table, query.metric, index, query.vectors)
            # The rows that a filter leaves out may be the nearest ones, so that as many more rows must be found.
            index = None if index is None else index.widened(query.k + query.denied.size)
            found = find_neighbors(
                servable, table, query, self._limits, index, seconds=max(seconds, 0.0), threads=threads
            )
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
        """Returns model -> number of rows with which searches have compared their queries."""
        totals: Counter[str] = Counter()
        for (_, model), count in self._scanned.copy().items():
            totals[model] += count
        return totals
