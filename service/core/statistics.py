"""Adds the native core's counts of requests, batches and pages to the counters of the server's metrics.

The core's counts only grow. Each collect() adds the increase since the last collect(), so that the server's counters
keep the counts of unloaded versions.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from service.configuration.settings import Settings
from service.control import request_context
from service.control.request_context import Subject
from service.observe.metric_text import BATCH_ROWS, QUEUE, REQUEST, Durations, Rows, Times
from service.observe.request_metrics import Batches, RequestCounter, Successes
from service.types import SignatureKind
from service.versions.counts import PageCounts
from service.wire.config_protos import BatchingParameters

Document = dict[str, Any]
# Fields of the native core's statistics that read() leaves out, because the status page shows them elsewhere or as
# sums.
_APART = ("subjects", "slow", "failures", "refused", "failed", "waited", "held")


class _Numbers(NamedTuple):
    """The native core's numbers for one set of labels: sums of rows and seconds, and histograms of request times.

    example_counts: a histogram of the tf.Examples in a request; [] for methods without Examples.
    """

    rows: int
    seconds: float
    counts: list[int]
    run_seconds: float
    run_counts: list[int]
    example_counts: list[int]


class Events(Protocol):
    """The observer that counts refused requests, waiting times and dropped connections."""

    def connection_dropped(self, reason: str) -> None: ...

    def refused(self, model: str, reason: str, count: int = 1) -> None: ...

    def waits_counted(self, model: str, times: Times) -> None: ...

    def held_by_core(self, held: Mapping[str, int]) -> None:
        """Stores how many bytes the requests in flight of each model hold in the native core."""
        ...


class CoreNumbers(Protocol):
    """The source of the native core's statistics, such as core.edge.Edge; edge/snapshot.rs makes the JSON."""

    @property
    def statistics(self) -> str: ...

    def retire(self, model: str, version: int) -> str: ...

    def forget(self, model: str) -> None: ...


class NativeStatistics:
    """The reader of the native core's statistics, which adds them to the server's counters. Concurrency: any thread.

    Args:
      requests: the counter that the core's answered requests are added to.
      slow: called for each new slow request; was_slow() of service.observe.history.
      failed: called for each new refused request; noted() of service.observe.history.
      events: called for refusals, waits and dropped connections.
      handshake_failed: called with the wire of a connection whose handshake, of TLS or of HTTP/2, failed.
      now: seconds since 1970.
    """

    def __init__(
        self,
        core: CoreNumbers,
        requests: RequestCounter,
        *,
        slow: Callable[[Subject, float, float, int], None],
        failed: Callable[[Subject, str, str], None],
        events: Events,
        handshake_failed: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._core = core
        self._requests = requests
        self._slow = slow
        self._failed_request = failed
        self._events = events
        self._handshake_failed = handshake_failed
        self._lock = threading.Lock()
        self._known: dict[tuple[Subject, SignatureKind], _Numbers] = {}
        self._counted: dict[tuple[str, str], int] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self._failed: dict[tuple[Subject, str], int] = {}
        self._waited: dict[str, tuple[list[int], float]] = {}
        self._slow_until_s = self._failed_until_s = now()
        self._last: Document = {}
        self._is_stopped = False

    def collect(self) -> None:
        with self._lock:
            if self._is_stopped:
                return
            document = self._last = json.loads(self._core.statistics)
            self._known = self._add(document["subjects"])
            self._tell_events(document)
            self._tell_slow(document["slow"])
            self._tell_failures(document["failures"])

    def retire(self, model: str, version: int) -> None:
        with self._lock:
            if self._is_stopped:
                return
            retired = json.loads(self._core.retire(model, version))
            gone = self._add(retired["subjects"])
            self._known = {key: numbers for key, numbers in self._known.items() if key not in gone}
            self._add_failures(retired["failed"])
            self._failed = {key: count for key, count in self._failed.items() if key[0][2:4] != (model, version)}

    def _add_failures(self, failed: list[Document]) -> None:
        for one in failed:
            key = (_subject(one), one["code"])
            more = one["count"] - self._failed.get(key, 0)
            self._failed[key] = one["count"]
            if more:
                self._requests.add_failures(*key, more)

    def forget(self, model: str) -> None:
        """Removes all counts of a removed model, from the native core too; a later model of the name counts from 0."""
        with self._lock:
            if self._is_stopped:
                return
            self._core.forget(model)
            self._known = {key: numbers for key, numbers in self._known.items() if key[0].model != model}
            self._refused = {key: count for key, count in self._refused.items() if key[0] != model}
            self._failed = {key: count for key, count in self._failed.items() if key[0].model != model}
            self._waited.pop(model, None)

    def stop(self) -> None:
        """Adds the native core's last counts to the server's counters; called before the core ends."""
        self.collect()
        with self._lock:
            self._is_stopped = True

    def _add(self, subjects: list[Document]) -> dict[tuple[Subject, SignatureKind], _Numbers]:
        """Adds the core's counts since the last call to the RequestCounter; returns the core's totals by labels."""
        found: dict[tuple[Subject, SignatureKind], _Numbers] = {}
        for one in subjects:
            subject, kind, numbers = _subject(one), one["kind"], _Numbers(*(one[name] for name in _Numbers._fields))
            found[subject, kind] = numbers
            before = self._known.get((subject, kind))
            if before is None or sum(numbers.counts) < sum(before.counts):
                # If the native core's counts for a set of labels became smaller, the core has dropped these counts
                # since the last collect(), and counts from 0 again.
                before = _Numbers(
                    *(0, 0.0, [0] * len(numbers.counts), 0.0, [0] * len(numbers.run_counts)),
                    [0] * len(numbers.example_counts),
                )
            if numbers.counts != before.counts:
                self._requests.add(subject, _successes(kind, numbers, before))
        return found

    def read(self) -> Document:
        with self._lock:
            found = {name: _counts(value) for name, value in self._last.items() if name not in _APART}
            refused: dict[str, int] = {}
            for _, reason, count in self._last.get("refused", ()):
                refused[reason] = refused.get(reason, 0) + count
            return found | {"refused": refused}

    @property
    def connections(self) -> int:
        """Number of connections of all wires that were open at the last collect()."""
        return sum(count for _, count in self._last.get("connections", ()))

    @property
    def bytes_held_total(self) -> int:
        """Number of bytes that requests and answers had held, from the server's start to the last collect()."""
        return int(self._last.get("bytes_held_total", 0))

    def _tell_events(self, document: Document) -> None:
        for wire, _ in self._new(document, "handshakes_failed"):
            self._handshake_failed(wire)
            self._events.connection_dropped("handshake")
        for model, reason, count in document["refused"]:
            more = count - self._refused.get((model, reason), 0)
            self._refused[model, reason] = count
            if reason in ("connections", "idle"):
                for _ in range(more):
                    self._events.connection_dropped(reason)
            elif more:
                self._events.refused(model, reason, more)
        self._add_failures(document["failed"])
        self._tell_waits(document["waited"])
        self._events.held_by_core(dict(document["held"]))
        for _ in self._new(document, "cut"):
            self._events.connection_dropped("stalled")
        for reason, _ in self._new(document, "flooded"):
            self._events.connection_dropped(reason if reason == "malformed" else f"flood_{reason}")

    def _tell_waits(self, waited: list[Document]) -> None:
        for one in waited:
            model, counts, seconds = one["model"], one["counts"], one["seconds"]
            before, seconds_before = self._waited.get(model, ([0] * len(counts), 0.0))
            self._waited[model] = counts, seconds
            if counts != before:
                self._events.waits_counted(model, _times(counts, before, seconds - seconds_before, QUEUE))

    def _new(self, document: Document, name: str) -> list[tuple[str, int]]:
        """Returns (label, newest total) once for each event in document[name] since the last call for that name.

        An event is, for example, a failed handshake that the core has counted.
        """
        found = []
        for label, count in document[name]:
            before = self._counted.get((name, label), 0)
            self._counted[name, label] = count
            found += [(label, count)] * max(count - before, 0)
        return found

    def _tell_failures(self, failures: list[Document]) -> None:
        """Tells the status page the requests that the core refused since the last call."""
        new = sorted((one for one in failures if one["at_s"] > self._failed_until_s), key=lambda one: one["at_s"])
        for one in new:
            self._failed_until_s = one["at_s"]
            with _in_request(one):
                self._failed_request(_subject(one), one["code"], one["message"])

    def _tell_slow(self, slow: list[Document]) -> None:
        for one in slow:
            if one["at_s"] <= self._slow_until_s:
                continue
            self._slow_until_s = one["at_s"]
            with _in_request(one):
                self._slow(_subject(one), one["seconds"], one["run_seconds"], one["rows"])


@contextmanager
def _in_request(one: Document) -> Iterator[None]:
    token = request_context.request_id.set(one["request_id"].encode("latin-1", "replace"))
    try:
        yield
    finally:
        request_context.request_id.reset(token)


def _subject(one: Mapping[str, Any]) -> Subject:
    return Subject(one["api"], one["method"], one["model"], one["version"], one["signature"])


def _successes(kind: SignatureKind, now: _Numbers, before: _Numbers) -> Successes:
    found = Successes(kind, bool(now.example_counts))
    found.rows = now.rows - before.rows
    if found.examples is not None:
        found.examples.counts = _new(now.example_counts, before.example_counts)
        found.examples.total = found.rows
    found.times = _times(now.counts, before.counts, now.seconds - before.seconds)
    found.run_times = _times(now.run_counts, before.run_counts, now.run_seconds - before.run_seconds)
    return found


def _times(now: list[int], before: list[int], seconds: float, limits: Durations = REQUEST) -> Times:
    times = Times(limits)
    times.counts = _new(now, before)
    times.seconds = seconds
    return times


def _new(now: list[int], before: list[int]) -> list[int]:
    return [a - b for a, b in zip(now, before, strict=True)]


def _counts(value: Any) -> Any:
    # A list of (label, count) pairs becomes a dict, which the status page shows as a JSON object.
    return dict(value) if isinstance(value, list) else value


logger = logging.getLogger(__name__)


class Batcher:
    """The native core's batcher: the queues of all models' requests, and the threads that run their batches.

    Concurrency: any thread.

    Args:
      num_threads: the most batches that run at a time. thread_pool_name: the beginning of the threads' names.
    """

    def __init__(self, num_threads: int, thread_pool_name: str) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        limits = {"wait_s": QUEUE.limits_s, "rows": [int(limit) for limit in BATCH_ROWS]}
        self.core = _native.Batcher(num_threads, thread_pool_name, json.dumps(limits))
        self._pool = thread_pool_name

    def counts(self) -> Batches:
        found = json.loads(self.core.counts())
        waits = Times(QUEUE)
        if found["num_runs"]:
            waits.counts, waits.seconds = found["waits"]["counts"], found["waits"]["sum"]
        return Batches(
            found["num_runs"],
            found["num_requests"],
            {self._pool: waits} if found["num_runs"] else {},
            {int(size): _rows(rows) for size, rows in found["padding"].items()},
            _rows(found["arrived"]),
            _rows(found["run"]),
            found["rejected"],
        )


def create_batcher(settings: Settings, parameters: BatchingParameters | None) -> Batcher | None:
    """Returns the native core's batcher; None without parameters, and, with a warning, if the servers in Python answer,
    which do not batch.
    """
    if parameters is None:
        return None
    if settings.data_plane != "core":
        logger.warning("--enable_batching has no effect: the servers in Python answer each request by itself")
        return None
    return Batcher(parameters.num_batch_threads or settings.graph_threads, parameters.thread_pool_name)


def _rows(found: dict[str, Any]) -> Rows:
    rows = Rows(BATCH_ROWS)
    if found["counts"]:
        rows.counts, rows.total = found["counts"], found["sum"]
    return rows


class Pages:
    """The native core's pager, which reads the pages of mapped tables. Concurrency: any thread.

    Args:
      max_bytes: the most bytes of tables that stay in memory.
    """

    def __init__(self, max_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self.core = _native.Pager(max_bytes)

    def counts(self) -> PageCounts:
        found = json.loads(self.core.counts())
        return PageCounts(
            rows=found["rows"],
            reads=found["reads"],
            drops=found["drops"],
            losses=found["losses"],
            seconds=found["nanos"] / 1e9,
            bytes=found["bytes"],
            max_bytes=found["max_bytes"],
        )
