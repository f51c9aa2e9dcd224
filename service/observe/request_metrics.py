"""Counts finished, refused and warm-up requests and batches for metrics.

The native core counts what it answers itself. Its counts are added when the metrics are read.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from service.control.request_context import Finished, Subject
from service.errors import ServiceError
from service.observe.metric_text import BATCH_ROWS, EXAMPLES, REQUEST, Rows, Times
from service.types import SignatureKind
from service.versions.neighbors import SIGNATURE


class Successes:
    """Counts of the successful requests with one set of labels.

    times: seconds that whole requests took; run_times: seconds that their lookups or graph runs took.
    examples: numbers of tensorflow.Examples in a request; None for methods without Examples.
    """

    __slots__ = ("kind", "rows", "times", "run_times", "examples")

    def __init__(self, kind: SignatureKind | Literal["search"], has_examples: bool) -> None:
        self.kind = kind
        self.rows = 0
        self.times = Times(REQUEST)
        self.run_times = Times(REQUEST)
        self.examples = Rows(EXAMPLES) if has_examples else None

    @property
    def count(self) -> int:
        return sum(self.times.counts)

    def merge(self, other: Successes) -> None:
        self.rows += other.rows
        self.times.merge(other.times)
        self.run_times.merge(other.run_times)
        if self.examples and other.examples:
            self.examples.merge(other.examples)


@dataclass(frozen=True, slots=True)
class Requests:
    """Counts of requests by their labels (API, method, model, version, signature); failures also by error code."""

    successes: dict[Subject, Successes] = field(default_factory=dict)
    failures: dict[tuple[Subject, str], int] = field(default_factory=dict)

    def add_successes(self, subject: Subject, more: Successes) -> None:
        known = self.successes.get(subject)
        if known is None:
            known = self.successes[subject] = Successes(more.kind, more.examples is not None)
        known.merge(more)

    def add_failures(self, subject: Subject, code: str, count: int) -> None:
        self.failures[subject, code] = self.failures.get((subject, code), 0) + count

    def add(self, more: Requests) -> None:
        for subject, cell in more.successes.items():
            self.add_successes(subject, cell)
        for (subject, code), count in more.failures.items():
            self.add_failures(subject, code, count)

    def take(self, is_wanted: Callable[[Subject], bool]) -> Requests:
        return Requests(
            {subject: self.successes.pop(subject) for subject in list(self.successes) if is_wanted(subject)},
            {failure: self.failures.pop(failure) for failure in list(self.failures) if is_wanted(failure[0])},
        )

    def without_version(self) -> Requests:
        """Returns the same counts under subjects without a version, whose signature is the kind of request, or "" for
        failures.
        """
        found = Requests()
        for subject, cell in self.successes.items():
            found.add_successes(subject._replace(version=None, signature=cell.kind), cell)
        for (subject, code), count in self.failures.items():
            found.add_failures(subject._replace(version=None, signature=""), code, count)
        return found


@dataclass(frozen=True, slots=True)
class CoreCounts:
    """The native core's counts since its start; those of requests are of versions that are served now.

    refused: requests by model and reason. waits: times that requests waited for a thread, by model. held: bytes that
    requests and answers hold now, by model. dropped: connections by reason. handshakes_failed: connections by wire.
    """

    requests: Requests = field(default_factory=Requests)
    refused: Mapping[tuple[str, str], int] = field(default_factory=dict)
    waits: Mapping[str, Times] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    handshakes_failed: Mapping[str, int] = field(default_factory=dict)


class Notes(Protocol):
    """The receiver of slow and failed requests, which the status page lists; RecentRequests is one."""

    @property
    def slow_s(self) -> float: ...

    def was_slow(self, subject: Subject, seconds: float, run_seconds: float, rows: int) -> None: ...

    def failed(self, subject: Subject, error: BaseException, code: str) -> None: ...


class CoreStatistics(Protocol):
    """A source of counts of requests that Python does not see, because the native core answers them."""

    def collect(self) -> CoreCounts: ...

    def retire(self, model: str, version: int) -> Requests: ...

    def forget(self, model: str) -> None: ...


class RequestCounter:
    """The counter of requests for all models. Concurrency: any thread.

    core: counts the requests that the native core answers; None: there is no core, or it has ended.
    """

    def __init__(self, notes: Notes | None = None) -> None:
        self.core: CoreStatistics | None = None
        self._notes = notes
        self._slow_s = notes.slow_s if notes else math.inf
        self._own = Requests()
        # Numbers of control requests by API, model and code.
        self._control: Counter[tuple[str, str, str]] = Counter()
        # The native core's counts of requests refused for load, by model and reason, at the last read().
        self._refused: Mapping[tuple[str, str], int] = {}
        # Sums of the counts of requests for versions that were unloaded, for the totals that read() returns.
        self._retired = Requests()
        # read() and retire() hold this lock, so that read() sees the counts that retire() moves to _retired exactly
        # once.
        self._lock = threading.Lock()

    def finished(self, request: Finished) -> None:
        subject, seconds, run_seconds, rows = request.subject, request.seconds, request.run_seconds, request.rows
        code = "OK" if request.error is None else _code_of(request.error)
        if request.is_control:
            with self._lock:
                self._control[subject.api, subject.model, code] += 1
        elif request.error is not None:
            with self._lock:
                self._own.add_failures(subject, code, 1)
        if request.error is not None and self._notes is not None:
            self._notes.failed(subject, request.error, code)
        if request.error is not None or request.is_control:
            return
        with self._lock:
            cell = self._own.successes.get(subject)
            if cell is None:
                kind: Literal["search", "lookup"] = "search" if subject.signature == SIGNATURE else "lookup"
                cell = self._own.successes[subject] = Successes(kind, has_examples=False)
            cell.times.add(seconds)
            cell.run_times.add(run_seconds)
            cell.rows += rows
        if seconds >= self._slow_s and self._notes is not None:
            self._notes.was_slow(subject, seconds, run_seconds, rows)

    def control(self) -> dict[tuple[str, str, str], int]:
        with self._lock:
            return dict(self._control)

    def failures(self) -> Counter[tuple[str, str]]:
        """Returns the numbers of requests that failed, by model and code, or "refused: REASON" for load."""
        found: Counter[tuple[str, str]] = Counter()
        for (subject, code), count in self.read()[1].failures.items():
            found[subject.model, code] += count
        for (_, model, code), count in self.control().items():
            if code != "OK":
                found[model, code] += count
        for (model, reason), count in self._refused.items():
            found[model, f"refused: {reason}"] += count
        return found

    def read(self) -> tuple[Requests, Requests]:
        """Returns the counts of requests for versions that are served now, and those for all versions since the start.

        The latter are without versions, see Requests.without_version.
        """
        with self._lock:
            now, ever = Requests(), Requests()
            now.add(self._own)
            if self.core is not None:
                counts = self.core.collect()
                now.add(counts.requests)
                self._refused = counts.refused
            ever.add(self._retired)
            ever.add(now.without_version())
            return now, ever

    def retire(self, model: str, version: int) -> None:
        """Moves an unloaded version's counts of requests to the totals since the start; no later request for it may be
        counted.
        """
        with self._lock:
            gone = self._own.take(lambda subject: (subject.model, subject.version) == (model, version))
            if self.core is not None:
                gone.add(self.core.retire(model, version))
            self._retired.add(gone.without_version())

    def forget(self, model: str) -> None:
        with self._lock:
            if self.core is not None:
                self.core.forget(model)
            for counts in (self._own, self._retired):
                counts.take(lambda subject: subject.model == model)
            self._control = Counter({key: count for key, count in self._control.items() if key[1] != model})

    def detach_core(self) -> None:
        """Keeps the native core's last counts as own ones; called before the core ends."""
        with self._lock:
            if self.core is not None:
                self._own.add(self.core.collect().requests)
                self.core = None


def _code_of(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "CANCELLED"  # asyncio cancels a request's task if the client disconnects
    return error.code if isinstance(error, ServiceError) else ServiceError.code


def _batch_rows() -> Rows:
    return Rows(BATCH_ROWS)


@dataclass(slots=True)
class Batches:
    """Counts of batches of graph runs since the server's start.

    num_runs: batches; num_requests: requests in them, a split request counted in each of its batches. waits: times by
      name of the thread pool. padding: rows of padding by rows of the batch. arrived: rows of requests; run: rows of
      batches with padding. rejected: refused requests by code.
    """

    num_runs: int = 0
    num_requests: int = 0
    waits: dict[str, Times] = field(default_factory=dict)
    padding: dict[int, Rows] = field(default_factory=dict)
    arrived: Rows = field(default_factory=_batch_rows)
    run: Rows = field(default_factory=_batch_rows)
    rejected: dict[str, int] = field(default_factory=dict)


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
        with self._lock:
            return sorted(self._found.values(), key=lambda warmup: warmup[:2])

    def retire(self, model: str, version: int) -> None:
        with self._lock:
            self._found = {key: found for key, found in self._found.items() if key[:2] != (model, version)}

    def forget(self, model: str) -> None:
        with self._lock:
            self._found = {key: found for key, found in self._found.items() if key[0] != model}
