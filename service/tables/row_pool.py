"""Runs a large lookup in several threads; each thread writes some of the rows of the same answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from service.tables import kernels
from service.types import Array

# Least bytes of an answer for each thread. Running a part of a lookup in another thread costs 60 to 70 us of CPU, as
# much as gathering 1000 rows of 256 bytes.
_LEAST_BYTES = 512 << 10

# Type of a function that runs a kernel on the rows from begin to end of a lookup; an error code that it returns has the
# position in the whole lookup, not in this part.
Part = Callable[[int, int], int]


class RowRunner(Protocol):
    """The function that runs a kernel on all rows of a lookup, at once or in parts. Concurrency: any thread."""

    def __call__(self, part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
        """Runs a kernel on all rows of a lookup; returns OK, the first fault, or MISSING - n for n ids without a row.

        Args:
          row_splits: [rows + 1], by which the ids are shared out evenly; None: all rows cost the same.
          num_bytes: the bytes that the lookup writes.
        """
        ...


def in_one_piece(part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
    """Runs the kernel on all rows of a lookup in one call, in the calling thread."""
    return part(0, rows)


def row_runner(threads: int) -> RowRunner:
    """Returns the function that runs each lookup's kernel, in at most the given number of threads."""
    return in_one_piece if threads == 1 else RowPool(threads, _LEAST_BYTES)


class RowPool:
    """A RowRunner that splits a large lookup between the calling thread and a pool of threads. Concurrency: any thread.

    Args:
      threads: how many threads work on one lookup, with the calling thread.
      least_bytes: the least bytes of an answer for each thread: with fewer, handing a part over costs more time than
        the second thread saves.
    """

    def __init__(self, threads: int, least_bytes: int) -> None:
        self._threads = threads
        self._least_bytes = least_bytes
        # ThreadPoolExecutor starts its threads only when work is submitted, so the pool has none before the first large
        # lookup.
        self._pool = ThreadPoolExecutor(threads - 1, "lookup")

    def __call__(self, part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
        """Runs a kernel on all rows of a lookup, in several threads if the lookup is large."""
        parts = min(self._threads, num_bytes // self._least_bytes, rows)
        if parts < 2:
            return part(0, rows)
        bounds = [rows * i // parts for i in range(parts + 1)]
        if row_splits is not None:
            shares = [int(row_splits[-1]) * i // parts for i in range(1, parts)]
            bounds[1:-1] = np.searchsorted(row_splits, shares).tolist()
        others = [self._pool.submit(part, begin, end) for begin, end in zip(bounds[1:-1], bounds[2:], strict=True)]
        # The results of all parts of the lookup are awaited: no thread may write to the answer after the return.
        returned = [part(0, bounds[1]), *(other.result() for other in others)]
        missing = 0
        for stopped in returned:
            if stopped <= kernels.MISSING:
                missing += kernels.MISSING - stopped
            elif stopped != kernels.OK:
                return stopped
        return kernels.MISSING - missing if missing else kernels.OK
