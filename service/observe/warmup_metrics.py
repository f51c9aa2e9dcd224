"""Counts replays of a version's warm-up requests, one for each load."""

from __future__ import annotations

import threading
from typing import NamedTuple

from service.observe.buckets import REQUEST, Times


class Warmup(NamedTuple):
    """Counts of replays of one version's warm-up requests that ended with the same status.

    path: the version's folder. status: canonical code.
    """

    path: str
    status: str
    records: int
    times: Times


class WarmupCounter:
    """The counter of replays of warm-up requests, for all models. Concurrency: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, str], Warmup] = {}

    def warmed_up(self, *, model: str, version: int, path: str, status: str, seconds: float, records: int) -> None:
        with self._lock:
            old = self._found.get((model, version, status))
            times = old.times if old else Times(REQUEST)
            times.add(seconds)
            self._found[model, version, status] = Warmup(path, status, records + (old.records if old else 0), times)

    def read(self) -> list[Warmup]:
        """Returns the counts of warm-up replays for versions still served, sorted by folder and by the final status."""
        with self._lock:
            return sorted(self._found.values(), key=lambda warmup: warmup[:2])

    def retire(self, model: str, version: int) -> None:
        """Drops the counts of warm-up replays of a version that has ended, because new versions may come all day."""
        with self._lock:
            self._found = {key: found for key, found in self._found.items() if key[:2] != (model, version)}

    def forget(self, model: str) -> None:
        with self._lock:
            self._found = {key: found for key, found in self._found.items() if key[0] != model}
