"""Keeps what the status page and the console show of the past: slow and failed requests, rates, states of versions."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from service.control import request_context
from service.control.request_context import Subject
from service.errors import ServiceError
from service.observe.metric_text import REQUEST, quantile_s
from service.observe.request_metrics import RequestCounter
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
    client: as in request_context.
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
    client: str = ""


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
        client = request_context.client.get()
        noted = Noted(self._now(), _own_id(), *subject, seconds, run_seconds, rows, client=client)
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
        client = request_context.client.get()
        noted = Noted(self._now(), _own_id(), *subject, code=code, message=message[:_MAX_TEXT], client=client)
        (self._own_failures if code in _OURS else self._refusals).append(noted)

    def slowest(self) -> list[Noted]:
        return sorted(self._slow.copy(), key=lambda noted: -noted.seconds)

    def failures(self) -> list[Noted]:
        # Failures of the server are kept apart from errors of clients, so that a client's many errors displace none.
        kept = [*reversed(self._own_failures.copy()), *reversed(self._refusals.copy())]
        return sorted(kept, key=lambda noted: noted.at_s, reverse=True)

    def _may_say(self) -> int | None:
        """Says whether one more slow request may be logged: None if not, else how many lines were left out before."""
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
# Most points. When there are more, each two intervals become one, and from then on points are twice as far apart.
MAX_POINTS = 240
# Most models of a point; the requests for all further ones, the least busy, are one line.
MAX_MODELS = 30
OTHERS = "all other models"
# The times before now, in seconds, whose requests the console tells apart by their kinds.
SPANS_S = (60, 300)


class _Counts(NamedTuple):
    """Counts of requests. buckets: successes by duration, as Times.counts."""

    failures: int = 0
    buckets: tuple[int, ...] = (0,) * (len(REQUEST.limits_s) + 1)

    @property
    def successes(self) -> int:
        return sum(self.buckets)

    def plus(self, more: _Counts, sign: int = 1) -> _Counts:
        buckets = tuple(a + sign * b for a, b in zip(self.buckets, more.buckets, strict=True))
        return _Counts(self.failures + sign * more.failures, buckets)

    def quantile_ms(self, share: float) -> float | None:
        found_s = quantile_s(self.buckets, REQUEST.limits_s, share)
        return None if found_s is None else round(found_s * 1e3, 4)


_Key = TypeVar("_Key")
_NONE = _Counts()
# Counts by model and kind of request; the kind of failures is "".
_Table = Mapping[tuple[str, str], _Counts]


class _Interval(NamedTuple):
    """The requests between two points in time, of a monotonic clock in seconds."""

    begin_s: float
    end_s: float
    table: _Table


class TrafficHistory:
    """The counts of requests at points in time, from the server's start on. Concurrency: any thread.

    Args:
      requests: has the counts of requests so far. wall_clock: seconds since 1970; clock: monotonic seconds.
    """

    def __init__(
        self,
        requests: RequestCounter,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._wall_clock, self._clock = wall_clock, clock
        self._lock = threading.Lock()
        self._start_s = self._end_s = clock()
        self._last: _Table = {}
        self._others: frozenset[str] = frozenset()
        # All intervals since the start, and how many steps an interval has; the newest may have fewer so far.
        self._intervals: list[_Interval] = []
        self._steps, self._steps_done = 1, 1
        # The intervals of one step of the longest span.
        self._recent: deque[_Interval] = deque()

    def watch(self, stop: threading.Event) -> None:
        repeat(self.add_point, stop, _STEP_S, "traffic")

    def add_point(self) -> None:
        with self._lock:
            newest, self._last = self._until_now()
            self._end_s = newest.end_s
            self._recent.append(newest)
            while self._recent[0].end_s <= newest.end_s - SPANS_S[-1]:
                self._recent.popleft()
            if self._steps_done < self._steps:
                self._intervals[-1] = _joined([self._intervals[-1], newest])
                self._steps_done += 1
                return
            self._intervals.append(newest)
            self._steps_done = 1
            if len(self._intervals) > MAX_POINTS:
                self._intervals = [_joined(self._intervals[at : at + 2]) for at in range(0, len(self._intervals), 2)]
                self._steps *= 2

    def read(self) -> dict[str, Any]:
        """Returns for each model, and each interval between two points, the rates and the latencies of requests.

        {"at_s": the ends of the intervals, "start_s", "models": {name: {"successes_per_s", "failures_per_s", "p50_ms",
        "p99_ms"}}, "spans": [{"seconds", "rows": [{"model", "kind", "successes", "failures", "p50_ms", "p99_ms"}]}]}.
        In "models" each is a list with a number for each interval; a latency is null if no request succeeded. "spans"
        has the times before now of SPANS_S, and the last one is all the time since the start. The name "" is that of
        requests for no known model, and the kind "" that of failures.
        """
        with self._lock:
            newest, last = self._until_now()
            intervals, recent = [*self._intervals, newest], [*self._recent, newest]
            since_start = _Interval(self._start_s, newest.end_s, self._limited(last))
        now_s = newest.end_s
        # Points have the monotonic clock's times, so that a step of the wall clock makes no interval longer or shorter.
        ahead_s = self._wall_clock() - now_s
        by_model = [_by_model(interval.table) for interval in intervals]
        spans = [_joined([one for one in recent if one.end_s > now_s - span_s]) for span_s in SPANS_S]
        return {
            "start_s": round(self._start_s + ahead_s, 3),
            "at_s": [round(interval.end_s + ahead_s, 3) for interval in intervals],
            "models": {
                name: _rates(intervals, [models.get(name, _NONE) for models in by_model])
                for name in sorted({name for models in by_model for name in models})
            },
            "spans": [
                {"seconds": round(_seconds(span), 3), "rows": [_row(*one) for one in sorted(span.table.items())]}
                for span in [*spans, since_start]
            ],
        }

    def _until_now(self) -> tuple[_Interval, _Table]:
        # The counts of the versions that are served now would fall when one of them is unloaded.
        now, more = _table(self._requests), {}
        for key, counts in now.items():
            old = self._last.get(key, _NONE)
            # The counts of a model that is removed from the list are dropped, and begin again if it comes back.
            is_lower = counts.failures < old.failures or counts.successes < old.successes
            if counts != old:
                more[key] = counts if is_lower else counts.plus(old, -1)
        models = _by_model(now)
        busiest = sorted(models, key=lambda name: -models[name].successes - models[name].failures)
        self._others = frozenset(busiest[MAX_MODELS:])
        return _Interval(self._end_s, self._clock(), self._limited(more)), now

    def _limited(self, table: _Table) -> _Table:
        return _sums(
            ((OTHERS if model in self._others else model, kind), counts) for (model, kind), counts in table.items()
        )


def _table(requests: RequestCounter) -> _Table:
    found = [
        ((subject.model, subject.signature), _Counts(0, tuple(cell.times.counts)))
        for subject, cell in requests.read()[1].successes.items()
    ]
    return _sums(found + [((model, ""), _Counts(count)) for (model, _), count in requests.failures().items()])


def _sums(found: Iterable[tuple[_Key, _Counts]]) -> dict[_Key, _Counts]:
    sums: dict[_Key, _Counts] = {}
    for key, counts in found:
        old = sums.get(key)
        sums[key] = counts if old is None else old.plus(counts)
    return sums


def _by_model(table: _Table) -> dict[str, _Counts]:
    return _sums((model, counts) for (model, _), counts in table.items())


def _joined(intervals: Sequence[_Interval]) -> _Interval:
    table = _sums(one for interval in intervals for one in interval.table.items())
    return _Interval(intervals[0].begin_s, intervals[-1].end_s, table)


def _seconds(interval: _Interval) -> float:
    return max(interval.end_s - interval.begin_s, 1e-3)


def _row(key: tuple[str, str], counts: _Counts) -> dict[str, Any]:
    return {
        "model": key[0],
        "kind": key[1],
        "successes": counts.successes,
        "failures": counts.failures,
        "p50_ms": counts.quantile_ms(0.5),
        "p99_ms": counts.quantile_ms(0.99),
    }


def _rates(intervals: list[_Interval], counts: list[_Counts]) -> dict[str, list[float | None]]:
    both = list(zip(intervals, counts, strict=True))
    return {
        "successes_per_s": [round(one.successes / _seconds(interval), 4) for interval, one in both],
        "failures_per_s": [round(one.failures / _seconds(interval), 4) for interval, one in both],
        "p50_ms": [one.quantile_ms(0.5) for one in counts],
        "p99_ms": [one.quantile_ms(0.99) for one in counts],
    }


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
