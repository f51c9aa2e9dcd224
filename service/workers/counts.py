"""How many connections each worker holds, where all of them can read it: a page of memory that they share."""

from __future__ import annotations

import mmap
import os
from typing import Literal

Wire = Literal["http", "grpc", "admin"]
_WIRES: tuple[Wire, ...] = ("http", "grpc", "admin")
# Not taking connections: not there, not ready, or leaving.
_AWAY = -1
_CELL_BYTES = 8


class ConnectionCounts:
    """Counts by worker and wire, -1 where a worker takes none.

    Concurrency: any process; each writes its own cells, one machine word at a time, so none is ever seen half written.
    """

    def __init__(self, descriptor: int, num_workers: int) -> None:
        self.descriptor = descriptor
        self.num_workers = num_workers
        self._cells = memoryview(mmap.mmap(descriptor, _CELL_BYTES * len(_WIRES) * num_workers)).cast("q")

    @classmethod
    def create(cls, num_workers: int) -> ConnectionCounts:
        """Makes the page, with nobody there yet."""
        descriptor = os.memfd_create("connection-counts")
        os.ftruncate(descriptor, _CELL_BYTES * len(_WIRES) * num_workers)
        counts = cls(descriptor, num_workers)
        for worker in range(num_workers):
            counts.gone(worker)
        return counts

    def set(self, worker: int, wire: Wire, connections: int) -> None:
        """Says how many connections a worker holds that takes more."""
        self._cells[self._place(worker, wire)] = connections

    def away(self, worker: int, wire: Wire) -> None:
        """Says that a worker takes no connections."""
        self._cells[self._place(worker, wire)] = _AWAY

    def gone(self, worker: int) -> None:
        """Says that there is no such worker now."""
        for wire in _WIRES:
            self.away(worker, wire)

    def least_of_others(self, worker: int, wire: Wire) -> int | None:
        """Returns the fewest connections that another worker holds; None where no other takes any."""
        others = (self._cells[self._place(other, wire)] for other in range(self.num_workers) if other != worker)
        return min((count for count in others if count != _AWAY), default=None)

    def held(self, worker: int) -> dict[str, int | None]:
        """Returns a worker's connections by wire; None where it takes none now."""
        counts = {wire: self._cells[self._place(worker, wire)] for wire in _WIRES}
        return {wire: None if count == _AWAY else count for wire, count in counts.items()}

    def _place(self, worker: int, wire: Wire) -> int:
        return worker * len(_WIRES) + _WIRES.index(wire)
