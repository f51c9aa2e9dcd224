"""A large lookup's rows shared out among threads, each of which writes its own rows of the one answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from service.tables import kernels
from service.types import Array

# Handing a part over and waiting for it cost 60 to 70 us of CPU, in which a thread gathers 1000 rows of 256 bytes.
_LEAST_BYTES = 512 << 10

# Runs a kernel on rows [begin, end); returns what the kernel did, positions and rows counted from the first of all.
Part = Callable[[int, int], int]


class RowRunner(Protocol):
    """Runs a kernel on all rows of a lookup. Concurrency: any thread."""

    def __call__(self, part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
        """Returns what one call of the kernel on all rows would: the first fault, else how many ids have no row.

        Args:
          row_splits: [rows + 1] by which the work is shared out evenly; None: rows are all the same.
          num_bytes: how much the lookup writes.
        """
        ...


def in_one_piece(part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
    """Runs all rows on the calling thread."""
    return part(0, rows)


def row_runner(threads: int) -> RowRunner:
    """Returns what runs the lookups of a server that may use so many threads for one."""
    return in_one_piece if threads == 1 else RowPool(threads, _LEAST_BYTES)


class RowPool:
    """Shares the rows of large lookups out among the calling thread and some more. Concurrency: any thread.

    Args:
      threads: how many work on one lookup, the calling one among them.
      least_bytes: of an answer, for each thread that works on it: below that, handing over costs more than it saves.
    """

    def __init__(self, threads: int, least_bytes: int) -> None:
        self._threads = threads
        self._least_bytes = least_bytes
        # Its threads start when they are first needed.
        self._pool = ThreadPoolExecutor(threads - 1, "lookup")

    def __call__(self, part: Part, rows: int, row_splits: Array | None, num_bytes: int) -> int:
        """See RowRunner."""
        parts = min(self._threads, num_bytes // self._least_bytes, rows)
        if parts < 2:
            return part(0, rows)
        bounds = [rows * i // parts for i in range(parts + 1)]
        if row_splits is not None:
            shares = [int(row_splits[-1]) * i // parts for i in range(1, parts)]
            bounds[1:-1] = np.searchsorted(row_splits, shares).tolist()
        others = [self._pool.submit(part, begin, end) for begin, end in zip(bounds[1:-1], bounds[2:], strict=True)]
        # All are waited for: none may write once the answer is on its way.
        returned = [part(0, bounds[1]), *(other.result() for other in others)]
        missing = 0
        for stopped in returned:
            if stopped <= kernels.MISSING:
                missing += kernels.MISSING - stopped
            elif stopped != kernels.OK:
                return stopped
        return kernels.MISSING - missing if missing else kernels.OK
