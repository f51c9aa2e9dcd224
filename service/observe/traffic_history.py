"""Keeps the rates and latencies of each model's requests since the server's start, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from service.observe.buckets import REQUEST, quantile_s
from service.observe.request_metrics import Requests

# Seconds between two points at first.
_STEP_S = 5.0
# Most points. When there are more, every second one is dropped, and from then on points are twice as far apart.
MAX_POINTS = 240
# Most models of a point; the requests for all further ones, the least busy, are one line.
MAX_MODELS = 30
OTHERS = "all other models"


class _Counts(NamedTuple):
    """Counts of one model's requests since the server's start. buckets: successes by duration, as Times.counts."""

    successes: int
    failures: int
    buckets: tuple[int, ...]


_NONE = _Counts(0, 0, (0,) * (len(REQUEST.limits_s) + 1))
_Point = tuple[float, Mapping[str, _Counts]]


class TrafficHistory:
    """The counts of requests at points in time, from the server's start on. Concurrency: any thread.

    Args:
      requests: returns the counts of requests so far. wall_clock: seconds since 1970.
    """

    def __init__(self, requests: Callable[[], Requests], wall_clock: Callable[[], float] = time.time) -> None:
        self._requests = requests
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._points: list[_Point] = [(wall_clock(), {})]
        self._step_s = _STEP_S

    def watch(self, stop: threading.Event) -> None:
        def run() -> None:
            while not stop.wait(self._step_s):
                self.add_point()

        threading.Thread(target=run, name="traffic", daemon=True).start()

    def add_point(self) -> None:
        point = self._now()
        with self._lock:
            self._points.append(point)
            if len(self._points) > MAX_POINTS:
                # The first point is the server's start, and the last one is the newest.
                self._points = self._points[::2]
                self._step_s *= 2

    def read(self) -> dict[str, Any]:
        """Returns for each model, and each interval between two points, the rates and the latencies of requests.

        {"at_s": the ends of the intervals, "start_s", "models": {name: {"successes_per_s", "failures_per_s", "p50_ms",
        "p99_ms"}}}, each a list with a number for each interval; a latency is null if no request succeeded. The name ""
        is that of requests for no known model.
        """
        now = self._now()
        with self._lock:
            points = [*self._points, now]
        names = sorted({name for _, models in points for name in models})
        return {
            "start_s": points[0][0],
            "at_s": [at_s for at_s, _ in points[1:]],
            "models": {name: _rates(points, name) for name in names},
        }

    def _now(self) -> _Point:
        counts: dict[str, _Counts] = {}
        requests = self._requests()
        for subject, cell in requests.successes.items():
            old = counts.get(subject.model, _NONE)
            buckets = tuple(a + b for a, b in zip(old.buckets, cell.times.counts, strict=True))
            counts[subject.model] = _Counts(old.successes + cell.count, old.failures, buckets)
        for (subject, _), count in requests.failures.items():
            old = counts.get(subject.model, _NONE)
            counts[subject.model] = old._replace(failures=old.failures + count)
        busiest = sorted(counts, key=lambda name: -counts[name].successes - counts[name].failures)
        for name in busiest[MAX_MODELS:]:
            one, old = counts.pop(name), counts.get(OTHERS, _NONE)
            buckets = tuple(a + b for a, b in zip(old.buckets, one.buckets, strict=True))
            counts[OTHERS] = _Counts(old.successes + one.successes, old.failures + one.failures, buckets)
        return self._wall_clock(), counts


def _rates(points: list[_Point], name: str) -> dict[str, list[float | None]]:
    rates: dict[str, list[float | None]] = {"successes_per_s": [], "failures_per_s": [], "p50_ms": [], "p99_ms": []}
    for (begin_s, before), (end_s, after) in zip(points, points[1:], strict=False):
        old, new = before.get(name, _NONE), after.get(name, _NONE)
        if new.successes < old.successes or new.failures < old.failures:
            # The counts of a version go when it is unloaded.
            old = _NONE
        seconds = max(end_s - begin_s, 1e-3)
        rates["successes_per_s"].append(round((new.successes - old.successes) / seconds, 4))
        rates["failures_per_s"].append(round((new.failures - old.failures) / seconds, 4))
        buckets = [b - a for a, b in zip(old.buckets, new.buckets, strict=True)]
        for share in (50, 99):
            found_s = quantile_s(buckets, REQUEST.limits_s, share / 100)
            rates[f"p{share}_ms"].append(None if found_s is None else round(found_s * 1e3, 4))
    return rates
