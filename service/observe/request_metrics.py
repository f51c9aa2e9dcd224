"""Counts finished requests for metrics; each thread adds to counts of its own, so that no lock is needed.

A lock per counter costs little until a thread is preempted while it holds one; then all other threads that serve the
same model wait for a time slice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Protocol, TypeVar

from service.engine.call import Finished, Subject
from service.errors import ServiceError
from service.observe.buckets import EXAMPLES, REQUEST, Rows, Times
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
