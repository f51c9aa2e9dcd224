"""Counts replays of recorded warm-up requests, one for each load of a version."""

from __future__ import annotations

import threading
from typing import NamedTuple

from service.observe.buckets import REQUEST, Times


class Warmup(NamedTuple):
    """Replays of one version's warm-up requests with the same status.

    path: the version's folder. status: canonical code.
    """

    path: str
    status: str
    records: int
    times: Times


class WarmupCounter:
    """Counts warm-ups of all models. Concurrency: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, str], Warmup] = {}

    def warmed_up(self, *, model: str, version: int, path: str, status: str, seconds: float, records: int) -> None:
        """Counts one replay of warm-up requests."""
        with self._lock:
            old = self._found.get((model, version, status))
            times = old.times if old else Times(REQUEST)
            times.add(seconds)
            self._found[model, version, status] = Warmup(path, status, records + (old.records if old else 0), times)

    def read(self) -> list[Warmup]:
        """Returns the replays of versions that are still served, by path and status."""
        with self._lock:
            return sorted(self._found.values(), key=lambda warmup: warmup[:2])

    def retire(self, model: str, version: int) -> None:
        """Forgets a version: the paths would pile up where new versions come all day."""
        with self._lock:
            for key in [key for key in self._found if key[:2] == (model, version)]:
                del self._found[key]
