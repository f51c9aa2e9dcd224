"""Counts finished, refused and warm-up requests and batches for metrics.

A lock per counter costs little until a thread is preempted while it holds one; then all other threads that serve the
same model wait for a time slice.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import get_ident
from typing import NamedTuple, Protocol, TypeVar

from service.admission import Limits
from service.control.request_context import Finished, Subject
from service.errors import ServiceError
from service.observe.metric_text import (
    BATCH_ROWS,
    EXAMPLES,
    QUEUE,
    REQUEST,
    SECONDS,
    Rows,
    Times,
    family,
    histogram,
    labels,
    sample,
)
from service.types import SignatureKind


class Successes:
    """Counts of the successful requests with one set of labels, of one thread or summed over threads or versions.

    times: seconds that whole requests took; run_times: seconds that their lookups or graph runs took.
    examples: numbers of tensorflow.Examples in a request; None for methods without Examples.
    """

    __slots__ = ("kind", "rows", "times", "run_times", "examples")

    def __init__(self, kind: SignatureKind, has_examples: bool) -> None:
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


# Types of the keys of the counts of requests; a key's first part is the get_ident() of the thread that counts, or 0 for
# counts of the native core.
_SuccessKey = tuple[int, Subject]
_FailureKey = tuple[int, Subject, str]


class Notes(Protocol):
    """The receiver of slow and failed requests, which the status page lists; RecentRequests is one."""

    @property
    def slow_s(self) -> float: ...

    def was_slow(self, subject: Subject, seconds: float, run_seconds: float, rows: int) -> None:
        """Keeps, for the status page, a request that succeeded and took slow_s seconds or longer."""
        ...

    def failed(self, subject: Subject, error: BaseException, code: str) -> None:
        """Keeps a failed request for the status page; code: the canonical code of the request's error."""
        ...


class CountsElsewhere(Protocol):
    """A source of counts of requests that Python does not see, because the native core answers them."""

    def collect(self) -> None: ...

    def retire(self, model: str, version: int) -> None: ...

    def forget(self, model: str) -> None: ...


class RequestCounter:
    """The counter of requests for all models. Concurrency: any thread.

    NOTE: counts that are read while requests finish may lack the last request of a thread, or have it in one number of
      a cell and not yet in the next. So a histogram's count is the sum of its buckets, and never a number of its own.

    Args:
      notes: gets the requests that are slow or fail.

    also: counts requests that the native core answers.
    """

    def __init__(self, notes: Notes | None = None) -> None:
        self.also: CountsElsewhere | None = None
        self._notes = notes
        self._slow_s = notes.slow_s if notes else math.inf
        self._successes: dict[_SuccessKey, Successes] = {}
        self._failures: dict[_FailureKey, list[int]] = {}
        # Sums of the counts of requests for versions that were unloaded, for the totals that read() returns.
        self._retired = Requests()
        # read() and retire() hold this lock, so that read() sees the counts that retire() moves to _retired exactly
        # once.
        self._lock = threading.Lock()

    def finished(self, request: Finished) -> None:
        subject = request.subject
        if request.error is not None:
            self._failed(subject, request.error)
            return
        key = (get_ident(), subject)
        cell = self._successes.get(key)
        if cell is None:
            cell = self._successes[key] = Successes("lookup", has_examples=False)
        cell.times.add(request.seconds)
        cell.run_times.add(request.run_seconds)
        cell.rows += request.rows
        if request.seconds >= self._slow_s and self._notes is not None:
            self._notes.was_slow(subject, request.seconds, request.run_seconds, request.rows)

    def add(self, subject: Subject, more: Successes) -> None:
        """Adds counts of successful requests that the native core has answered; one caller at a time."""
        # The native core's counts have the key 0 in place of a thread's number; no thread has the number 0.
        key = (0, subject)
        cell = self._successes.get(key)
        if cell is None:
            cell = self._successes[key] = Successes(more.kind, more.examples is not None)
        cell.merge(more)

    def add_failures(self, subject: Subject, code: str, count: int) -> None:
        self._failures.setdefault((0, subject, code), [0])[0] += count

    def _failed(self, subject: Subject, error: BaseException) -> None:
        code: str = error.code if isinstance(error, ServiceError) else "INTERNAL"
        if not isinstance(error, Exception):
            code = "CANCELLED"  # asyncio cancels a request's task if the client disconnects
        self._failures.setdefault((get_ident(), subject, code), [0])[0] += 1
        if self._notes is not None:
            self._notes.failed(subject, error, code)

    def read(self) -> tuple[Requests, Requests]:
        """Returns the counts of requests for versions that are served now, and those for all versions since the start.

        In the counts of all versions, a subject's version is None, and its signature is the signature's kind, or "" for
        failures.
        """
        if self.also is not None:
            self.also.collect()
        with self._lock:
            now, ever = Requests(), Requests()
            for (_, subject), cell in self._successes.copy().items():
                now.add_successes(subject, cell)
            for (_, subject, code), count in self._failures.copy().items():
                now.add_failures(subject, code, count[0])
            for part in (self._retired, now):
                _add_without_version(part, ever)
            return now, ever

    def retire(self, model: str, version: int) -> None:
        """Moves an unloaded version's counts of requests to the totals since the start; no later request for it may be
        counted.
        """
        if self.also is not None:
            self.also.retire(model, version)
        with self._lock:
            gone = Requests()
            for key in _of_version(self._successes.copy(), model, version):
                gone.add_successes(key[1], self._successes.pop(key))
            for failure in _of_version(self._failures.copy(), model, version):
                _, subject, code = failure
                gone.add_failures(subject, code, self._failures.pop(failure)[0])
            _add_without_version(gone, self._retired)

    def forget(self, model: str) -> None:
        """Drops all counts of a removed model, also those since the start."""
        if self.also is not None:
            self.also.forget(model)
        with self._lock:
            for key in [key for key in self._successes.copy() if key[1].model == model]:
                self._successes.pop(key, None)
            for failure in [key for key in self._failures.copy() if key[1].model == model]:
                self._failures.pop(failure, None)
            kept = Requests()
            kept.successes.update(item for item in self._retired.successes.items() if item[0].model != model)
            kept.failures.update(item for item in self._retired.failures.items() if item[0][0].model != model)
            self._retired = kept


def _add_without_version(part: Requests, whole: Requests) -> None:
    for subject, more in part.successes.items():
        whole.add_successes(subject._replace(version=None, signature=more.kind), more)
    for (subject, code), count in part.failures.items():
        whole.add_failures(subject._replace(version=None, signature=""), code, count)


K = TypeVar("K", _SuccessKey, _FailureKey)


def _of_version(keys: Iterable[K], model: str, version: int) -> list[K]:
    return [key for key in keys if (key[1].model, key[1].version) == (model, version)]


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


logger = logging.getLogger(__name__)

# Least seconds between two log lines on refused requests, because thousands may be refused in a second.
_LOG_S = 1.0
_SECONDS = tuple(map(repr, SECONDS))
_PREFIX = "embedding_server_"


class AdmissionCounter:
    """The counter of refused requests, waiting times and dropped connections, for metrics. Concurrency: any thread.

    Args:
      clock: seconds, monotonic; refusals are logged once a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log_again_s = 0.0
        # Refusals and waits are counted for each thread, keyed by get_ident(), so that no thread waits for another's
        # lock.
        self._refused: dict[tuple[int, str, str], list[int]] = {}
        self._waits: dict[tuple[int, str], Times] = {}
        self._dropped: dict[str, int] = {}
        self._held_by_core: Mapping[str, int] = {}

    def refused(self, model: str, reason: str, count: int = 1) -> None:
        """Counts refused requests. count: number of requests, because the native core reports several at once."""
        self._refused.setdefault((get_ident(), model, reason), [0])[0] += count
        now_s = self._clock()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_S
            logger.warning("requests are refused", extra={"model": model, "refused_for": reason})

    def waited(self, model: str, seconds: float) -> None:
        key = (get_ident(), model)
        cell = self._waits.get(key)
        if cell is None:
            cell = self._waits[key] = Times(QUEUE)
        cell.add(seconds)

    def waits_counted(self, model: str, times: Times) -> None:
        self._waits.setdefault((get_ident(), model), Times(QUEUE)).merge(times)

    def forget(self, model: str) -> None:
        for refused in [key for key in self._refused.copy() if key[1] == model]:
            self._refused.pop(refused, None)
        for waits in [key for key in self._waits.copy() if key[1] == model]:
            self._waits.pop(waits, None)

    def connection_dropped(self, reason: str) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + 1

    def held_by_core(self, held: Mapping[str, int]) -> None:
        self._held_by_core = held

    def in_flight(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Returns model -> bytes in flight, in Python and in the native core together."""
        found = dict(held)
        for model, size in self._held_by_core.items():
            found[model] = found.get(model, 0) + size
        return found

    def dropped(self) -> dict[str, int]:
        return self._dropped.copy()

    def refusals(self) -> dict[tuple[str, str], int]:
        totals: dict[tuple[str, str], int] = {}
        for (_, model, reason), count in self._refused.copy().items():
            totals[model, reason] = totals.get((model, reason), 0) + count[0]
        return totals

    def waits(self) -> dict[str, Times]:
        found: dict[str, Times] = {}
        for (_, model), cell in self._waits.copy().items():
            found.setdefault(model, Times(QUEUE)).merge(cell)
        return found

    def lines(self, held: Mapping[str, int], limits: Limits | None) -> list[str]:
        """Returns the lines of the admission metrics. held: bytes in flight in Python, by model; limits: on these."""
        name = _PREFIX + "in_flight_bytes"
        about = "Bytes of requests and answers in flight; model is empty for requests of no known model."
        lines = family(name, "gauge", about)
        lines += [sample(name, labels({"model": model}), size) for model, size in sorted(self.in_flight(held).items())]
        name = _PREFIX + "in_flight_limit_bytes"
        lines += family(name, "gauge", "How many bytes may be in flight, of all models together.")
        lines += [sample(name, "", float(limits.bytes))] if limits else []
        name = _PREFIX + "refused_total"
        lines += family(
            name, "counter", "Requests refused before they ran, by reason: overload, or limits on one client."
        )
        lines += [
            sample(name, labels({"model": model, "reason": reason}), count)
            for (model, reason), count in sorted(self.refusals().items())
        ]
        name = _PREFIX + "connections_dropped_total"
        lines += family(
            name, "counter", "Connections that the server refused or cut; docs/security.md has the reasons."
        )
        lines += [sample(name, labels({"reason": r}), count) for r, count in sorted(self.dropped().items())]
        return lines + self._wait_lines()

    def _wait_lines(self) -> list[str]:
        name = _PREFIX + "thread_wait_seconds"
        lines = family(name, "histogram", "Seconds that requests which ran had waited for a thread.")
        for model, times in sorted(self.waits().items()):
            places, labelled = times.limits.seconds, labels({"model": model})
            lines += histogram(name, labelled, limits=_SECONDS, counts=times.counts, total=times.seconds, places=places)
        return lines
