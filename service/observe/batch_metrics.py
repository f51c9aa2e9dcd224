"""Counts batches of graph runs, and how long requests waited for one."""

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
    """Counts of batches since the start.

    num_runs: batches; num_requests: requests in them, one that is split counted in each. waits: by thread pool.
    padding: by rows of the run. arrived: rows of requests, run: rows of batches, padding included. rejected: requests
    by code.
    """

    num_runs: int = 0
    num_requests: int = 0
    waits: dict[str, Times] = field(default_factory=dict)
    padding: dict[int, Rows] = field(default_factory=dict)
    arrived: Rows = field(default_factory=_batch_rows)
    run: Rows = field(default_factory=_batch_rows)
    rejected: dict[str, int] = field(default_factory=dict)


class BatchCounter:
    """Counts the batches of all models; a batcher reports to it. Concurrency: any thread."""

    def __init__(self) -> None:
        # Taken once per batch; what happens once per request is counted by each thread for itself, as in requests.py.
        self._lock = threading.Lock()
        self._found = Batches()
        self._arrived: dict[int, Rows] = {}

    def arrived(self, *, rows: int) -> None:
        """A request of so many rows came to be batched."""
        thread = get_ident()
        cell = self._arrived.get(thread)
        if cell is None:
            cell = self._arrived[thread] = _batch_rows()
        cell.add(rows)

    def processed(
        self, *, requests: int, rows: int, padding: int, queue_seconds: Sequence[float], pool: str = ""
    ) -> None:
        """A batch was begun: requests, or parts of them, of so many rows together, padded by so many more rows.

        Args:
          queue_seconds: how long each of them waited.
          pool: name of the threads that run it.
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
        """A request was turned away before any work: too large, the queue full, or late."""
        code = error.code if isinstance(error, ServiceError) else "INTERNAL"
        with self._lock:
            self._found.rejected[code] = self._found.rejected.get(code, 0) + 1

    def read(self) -> Batches:
        """Returns a copy of what was counted so far."""
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
