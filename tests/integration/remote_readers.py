"""Threads that read random rows of a table in a cluster while a test breaks the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import numpy as np

from service.errors import TableUnreachable
from tests.integration.process import PACE_S, until


class Readers:
    """Threads that read random rows and compare them, until they are stopped.

    failures: texts of the errors that reads raised. right: count of reads whose rows were all right. wrong: count of
    reads with another row.

    Args:
      read: returns the rows of ids. rows: [V, D], the right rows.
    """

    def __init__(self, read: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, count: int = 3) -> None:
        self.failures: list[str] = []
        self.right = self.wrong = 0
        self._stop = threading.Event()
        self._read, self._rows = read, rows
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]

    def _run(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self._stop.wait(PACE_S):
            ids = rng.integers(0, len(self._rows), 200)
            try:
                found = self._read(ids)
            except (grpc.RpcError, TableUnreachable) as error:
                self.failures.append(str(error))
                continue
            if (found == self._rows[ids]).all():
                self.right += 1
            else:
                self.wrong += 1

    def more(self, count: int = 20) -> None:
        """Waits until `count` more reads were right, or one was wrong."""
        wanted = self.right + count
        until(lambda: self.right >= wanted or self.wrong)

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
