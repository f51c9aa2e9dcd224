"""Counts batches of graph runs, and the time that requests waited for their batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import get_ident

from service.errors import ServiceError
from service.observe.buckets import BATCH_ROWS, QUEUE, Rows, Times


def _batch_rows() -> Rows:
    return Rows(BATCH_ROWS)


@dataclass(slots=True)
class Batches:
    """Counts of batches of graph runs since the server's start.

    num_runs: batches; num_requests: requests in them, a split request counted in each of its batches. waits: times by
      name of the thread pool. padding: rows of padding by rows of the batch. arrived: rows of requests; run: rows of
      batches with padding. rejected: refused requests by code.
    """

    num_runs: int = 0
    num_requests: int = 0
    waits: dict[str, Times] = field(default_factory=dict)
    padding: dict[int, Rows] = field(default_factory=dict)
    arrived: Rows = field(default_factory=_batch_rows)
    run: Rows = field(default_factory=_batch_rows)
    rejected: dict[str, int] = field(default_factory=dict)


class BatchCounter:
    """The counter of batches of all models; Batchers call it. Concurrency: any thread."""

    def __init__(self) -> None:
        # The lock is for counts of batches, one access per batch. Counts of single requests need no lock: each thread
        # has its own, as in request_metrics.py.
        self._lock = threading.Lock()
        self._found = Batches()
        self._arrived: dict[int, Rows] = {}

    def arrived(self, *, rows: int) -> None:
        """Adds a request's number of rows to the histogram of requests that arrive to be batched."""
        thread = get_ident()
        cell = self._arrived.get(thread)
        if cell is None:
            cell = self._arrived[thread] = _batch_rows()
        cell.add(rows)

    def processed(
        self, *, requests: int, rows: int, padding: int, queue_seconds: Sequence[float], pool: str = ""
    ) -> None:
        """Counts a batch that begins to run: its requests (or parts of requests), its rows, and its rows of padding.

        Args:
          queue_seconds: seconds that each of these requests waited.
          pool: name of the thread pool that runs the batch.
        """
        size = rows + padding
        with self._lock:
            self._found.num_runs += 1
            self._found.num_requests += requests
            self._found.run.add(size)
            self._found.padding.setdefault(size, _batch_rows()).add(padding)
            waits = self._found.waits.setdefault(pool, Times(QUEUE))
            for seconds in queue_seconds:
                waits.add(seconds)

    def rejected(self, *, error: Exception) -> None:
        """Counts a request that a Batcher refused, because it is too large or too late, or the queue is full."""
        code = error.code if isinstance(error, ServiceError) else "INTERNAL"
        with self._lock:
            self._found.rejected[code] = self._found.rejected.get(code, 0) + 1

    def read(self) -> Batches:
        """Returns a copy of the counts of batches since the server's start."""
        arrived = _batch_rows()
        for cell in self._arrived.copy().values():
            arrived.merge(cell)
        with self._lock:
            found = self._found
            return Batches(
                found.num_runs,
                found.num_requests,
                {pool: _copy(waits) for pool, waits in found.waits.items()},
                {size: _copy_rows(rows) for size, rows in found.padding.items()},
                arrived,
                _copy_rows(found.run),
                found.rejected.copy(),
            )


def _copy(times: Times) -> Times:
    result = Times(times.limits)
    result.merge(times)
    return result


def _copy_rows(rows: Rows) -> Rows:
    result = _batch_rows()
    result.merge(rows)
    return result
