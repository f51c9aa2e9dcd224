"""Reads the native core's counts of requests, batches and pages for the server's metrics and its status page."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from service.configuration.settings import Settings
from service.control import request_context
from service.control.request_context import Subject
from service.observe.metric_text import BATCH_ROWS, EXAMPLES, QUEUE, REQUEST, Rows, Times
from service.observe.request_metrics import Batches, CoreCounts, Requests, Successes
from service.versions.counts import PageCounts
from service.wire.config_protos import BatchingParameters

if TYPE_CHECKING:
    from service import _native

logger = logging.getLogger(__name__)

Document = dict[str, Any]
# Least seconds between two log lines on refused requests.
_LOG_S = 1.0
# Fields of the native core's statistics that read() leaves out, because the status page shows them elsewhere or as
# sums.
_APART = ("subjects", "slow", "failures", "refused", "failed", "waited", "held")
# Reasons for which the core refuses or closes a connection; its other refusals are of requests.
_OF_CONNECTIONS = ("connections", "idle")


class NativeStatistics:
    """The reader of the native core's statistics, which edge/snapshot.rs makes. Concurrency: any thread.

    counts: the counts of the last collect().

    Args:
      now: seconds since 1970.
    """

    def __init__(
        self,
        core: _native.Server,
        *,
        slow: Callable[[Subject, float, float, int], None],
        failed: Callable[[Subject, str, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.counts = CoreCounts()
        self._core = core
        self._slow = slow
        self._failed = failed
        self._now, self._log_again_s = now, 0.0
        self._lock = threading.Lock()
        self._told_until_s = dict.fromkeys(("slow", "failures"), now())
        self._last: Document = {}

    def collect(self) -> CoreCounts:
        with self._lock:
            self._last = json.loads(self._core.statistics())
            before, self.counts = self.counts.refused, _counts_of(self._last)
            self._log_refusals(before)
            for one in self._new("slow"):
                with _in_request(one):
                    self._slow(_subject(one), one["seconds"], one["run_seconds"], one["rows"])
            for one in self._new("failures"):
                with _in_request(one):
                    self._failed(_subject(one), one["code"], one["message"])
            return self.counts

    def retire(self, model: str, version: int) -> Requests:
        return _requests_of(json.loads(self._core.retire(model, version)))

    def forget(self, model: str) -> None:
        """Removes all counts of a removed model from the native core; a later model of the name counts from 0."""
        self._core.forget(model)

    def read(self) -> Document:
        with self._lock:
            found = {name: _labelled(value) for name, value in self._last.items() if name not in _APART}
            refused: Counter[str] = Counter()
            for _, reason, count in self._last.get("refused", ()):
                refused[reason] += count
            return found | {"refused": dict(refused)}

    @property
    def connections(self) -> int:
        return sum(count for _, count in self._last.get("connections", ()))

    @property
    def bytes_held_total(self) -> int:
        return int(self._last.get("bytes_held_total", 0))

    def _log_refusals(self, before: Mapping[tuple[str, str], int]) -> None:
        grown = [key for key, count in self.counts.refused.items() if count > before.get(key, 0)]
        # Thousands of requests may be refused in a second, and metrics may be read often.
        if grown and self._now() >= self._log_again_s:
            self._log_again_s = self._now() + _LOG_S
            model, reason = grown[0]
            logger.warning("requests are refused", extra={"model": model, "refused_for": reason})

    def _new(self, name: str) -> list[Document]:
        until_s = self._told_until_s[name]
        found = sorted((one for one in self._last[name] if one["at_s"] > until_s), key=lambda one: one["at_s"])
        if found:
            self._told_until_s[name] = found[-1]["at_s"]
        return found


def _counts_of(document: Document) -> CoreCounts:
    refused = document["refused"]
    dropped: dict[str, int] = {
        "handshake": sum(count for _, count in document["handshakes_failed"]),
        "stalled": sum(count for _, count in document["cut"]),
        **{reason if reason == "malformed" else f"flood_{reason}": count for reason, count in document["flooded"]},
        **{reason: count for _, reason, count in refused if reason in _OF_CONNECTIONS},
    }
    return CoreCounts(
        requests=_requests_of(document),
        refused={(model, reason): count for model, reason, count in refused if reason not in _OF_CONNECTIONS},
        waits={one["model"]: Times(QUEUE, one["counts"], one["seconds"]) for one in document["waited"]},
        held=dict(document["held"]),
        dropped={reason: count for reason, count in dropped.items() if count},
        handshakes_failed=dict(document["handshakes_failed"]),
    )


def _requests_of(document: Document) -> Requests:
    found = Requests()
    for one in document["subjects"]:
        cell = Successes(one["kind"], has_examples=False)
        cell.rows = one["rows"]
        cell.times = Times(REQUEST, one["counts"], one["seconds"])
        cell.run_times = Times(REQUEST, one["run_counts"], one["run_seconds"])
        if one["example_counts"]:
            cell.examples = Rows(EXAMPLES, one["example_counts"], cell.rows)
        found.add_successes(_subject(one), cell)
    for one in document["failed"]:
        found.add_failures(_subject(one), one["code"], one["count"])
    return found


@contextmanager
def _in_request(one: Document) -> Iterator[None]:
    token = request_context.request_id.set(one["request_id"].encode("latin-1", "replace"))
    of_client = request_context.client.set(one["client"])
    try:
        yield
    finally:
        request_context.client.reset(of_client)
        request_context.request_id.reset(token)


def _subject(one: Mapping[str, Any]) -> Subject:
    return Subject(one["api"], one["method"], one["model"], one["version"], one["signature"])


def _labelled(value: Any) -> Any:
    # A list of (label, count) pairs becomes a dict, which the status page shows as a JSON object.
    return dict(value) if isinstance(value, list) else value


class Batcher:
    """The native core's batcher: the queues of all models' requests, and the threads that run their batches.

    Concurrency: any thread.
    """

    def __init__(self, num_threads: int, thread_pool_name: str) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        limits = {"wait_s": QUEUE.limits_s, "rows": [int(limit) for limit in BATCH_ROWS]}
        self.core = _native.Batcher(num_threads, thread_pool_name, json.dumps(limits))
        self._pool = thread_pool_name

    def counts(self) -> Batches:
        found = json.loads(self.core.counts())
        waits = found["waits"]
        return Batches(
            found["num_runs"],
            found["num_requests"],
            {self._pool: Times(QUEUE, waits["counts"], waits["sum"])} if found["num_runs"] else {},
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
    return Rows(BATCH_ROWS, found["counts"], found["sum"]) if found["counts"] else Rows(BATCH_ROWS)


class Pages:
    """The native core's pager, which reads the pages of mapped tables. Concurrency: any thread."""

    def __init__(self, max_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self.core = _native.Pager(max_bytes)

    def counts(self) -> PageCounts:
        found = json.loads(self.core.counts())
        return PageCounts(seconds=found.pop("nanos") / 1e9, **found)
