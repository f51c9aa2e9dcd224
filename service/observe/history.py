"""Keeps what the status page and the console show of the past: slow and failed requests, rates, states of versions."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.control import request_context
from service.control.request_context import Subject
from service.errors import ServiceError
from service.observe.metric_text import REQUEST, quantile_s
from service.observe.request_metrics import Requests
from service.types import VersionStatus
from service.versions.threads import repeat

logger = logging.getLogger(__name__)

_KEPT = 50
# Most log lines on slow requests per second: if all requests are slow, more lines would slow them further.
_LINES_PER_S = 5
_MAX_TEXT = 1000
# Codes of errors that the server or its load causes, and not the client; the status page lists their requests apart.
_OURS = frozenset({"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNKNOWN", "DATA_LOSS"})


@dataclass(frozen=True, slots=True)
class Noted:
    """One slow or failed request.

    at_s: its end, seconds since 1970. version: None if no version was bound. code: "OK" if the request was only slow.
    """

    at_s: float
    request_id: str
    api: str
    method: str
    model: str
    version: int | None
    signature: str
    seconds: float = 0.0
    run_seconds: float = 0.0
    rows: int = 0
    code: str = "OK"
    message: str = ""


class RecentRequests:
    """The last slow and the last failed requests, a fixed number of each. Concurrency: any thread.

    slow_s: seconds after which a request counts as slow; infinite: no request does.

    Args:
      now: seconds since 1970; clock: monotonic seconds.
    """

    def __init__(
        self, slow_s: float, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slow_s = slow_s
        self._now = now
        self._clock = clock
        self._slow: deque[Noted] = deque(maxlen=_KEPT)
        self._own_failures: deque[Noted] = deque(maxlen=_KEPT)
        self._refusals: deque[Noted] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._second = 0.0
        self._lines = self._unsaid = 0

    def was_slow(self, subject: Subject, seconds: float, run_seconds: float, rows: int) -> None:
        """Keeps a request that succeeded and took slow_s seconds or longer.

        Also logs the request, unless too many slow requests were logged in this second.
        """
        noted = Noted(self._now(), _own_id(), *subject, seconds, run_seconds, rows)
        self._slow.append(noted)
        unsaid = self._may_say()
        if unsaid is None:
            return
        extra = {
            **({"request_id": noted.request_id} if noted.request_id else {}),
            **subject._asdict(),
            "rows": rows,
            "seconds": round(seconds, 6),
            "run_seconds": round(run_seconds, 6),
            **({"unsaid": unsaid} if unsaid else {}),
        }
        logger.warning("slow request", extra=extra)

    def failed(self, subject: Subject, error: BaseException, code: str) -> None:
        """Keeps a failed request for the status page, but does not log it, which the HTTP or gRPC server does."""
        self.noted(subject, code, error.message if isinstance(error, ServiceError) else type(error).__name__)

    def noted(self, subject: Subject, code: str, message: str) -> None:
        noted = Noted(self._now(), _own_id(), *subject, code=code, message=message[:_MAX_TEXT])
        (self._own_failures if code in _OURS else self._refusals).append(noted)

    def slowest(self) -> list[Noted]:
        return sorted(self._slow.copy(), key=lambda noted: -noted.seconds)

    def failures(self) -> list[Noted]:
        # Failures of the server are kept apart from errors of clients, so that a client's many errors displace none.
        kept = [*reversed(self._own_failures.copy()), *reversed(self._refusals.copy())]
        return sorted(kept, key=lambda noted: noted.at_s, reverse=True)

    def _may_say(self) -> int | None:
        """Says whether one more slow request may be logged:

        None if not, else how many were not logged since the last line.
        """
        with self._lock:
            if self._clock() - self._second >= 1:
                self._second, self._lines = self._clock(), 0
            self._lines += 1
            if self._lines > _LINES_PER_S:
                self._unsaid += 1
                return None
            unsaid, self._unsaid = self._unsaid, 0
            return unsaid


def _own_id() -> str:
    return request_context.request_id.get().decode("latin-1")


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
        repeat(self.add_point, stop, lambda: self._step_s, "traffic")

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


# The status page counts the requests that failed in this many seconds.
FAILURES_S = 300


class RecentFailures:
    """The numbers of requests that failed in the last FAILURES_S seconds. Concurrency: any thread.

    Args:
      failures: returns the numbers of requests that failed since the server's start, by model and code. clock:
        monotonic seconds.
    """

    def __init__(
        self, failures: Callable[[], Counter[tuple[str, str]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._clock = clock
        self._lock = threading.Lock()
        self._points: deque[tuple[float, Counter[tuple[str, str]]]] = deque([(clock(), Counter())])

    def watch(self, stop: threading.Event) -> None:
        repeat(self.read, stop, _STEP_S, "failures")

    def read(self) -> dict[str, Any]:
        """Returns {"seconds", "counts": [{"model", "code", "requests"}]}, the most requests first.

        Also keeps the counts for later calls. The model "" is that of requests for no known model.
        """
        counts, now_s = self._failures(), self._clock()
        with self._lock:
            # Readers may come often: the number of points must not grow with them.
            if now_s - self._points[-1][0] >= _STEP_S:
                self._points.append((now_s, counts))
            while len(self._points) > 1 and self._points[1][0] <= now_s - FAILURES_S:
                self._points.popleft()
            new = counts - self._points[0][1]
        found = [{"model": model, "code": code, "requests": count} for (model, code), count in new.most_common()]
        return {"seconds": FAILURES_S, "counts": found}


# Number of newest state changes that are kept of each model. If a model loads a version each minute, these are the
# changes of the last half hour.
MAX_CHANGES = 200
# Number of models whose state changes are kept. If there are more, the model whose last change is oldest is dropped.
MAX_NAMES = 1000


class VersionHistory:
    """The last changes of state of every model's versions. Concurrency: any thread."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._changes: dict[str, deque[dict[str, Any]]] = {}

    def note(self, model: str, status: VersionStatus) -> None:
        change = {
            "at_s": round(self._wall_clock(), 3),
            "version": status.version,
            "state": status.state.name,
            "message": status.message,
        }
        with self._lock:
            changes = self._changes.pop(model, None) or deque(maxlen=MAX_CHANGES)
            changes.append(change)
            self._changes[model] = changes
            while len(self._changes) > MAX_NAMES:
                del self._changes[next(iter(self._changes))]

    def read(self, model: str) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._changes.get(model, ()))
