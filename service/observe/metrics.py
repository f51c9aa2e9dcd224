"""Collects all metrics of one server, and writes them as Prometheus text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial

from service.observe.attention import ReadFiles
from service.observe.metric_text import CONTENT_TYPE, series
from service.observe.own_metrics import (
    VersionStates,
    admission_lines,
    batch_lines,
    control_lines,
    core_lines,
    delta_lines,
    hot_rows_lines,
    request_lines,
    servable_lines,
)
from service.observe.reload_metrics import ReloadCounter, TlsCounter
from service.observe.request_metrics import Batches, CoreCounts, Notes, RequestCounter, WarmupCounter
from service.observe.serving_metrics import Counted, serving_lines
from service.types import State, VersionStatus
from service.versions.servable import LoadedServable

# Number of scrapes that still show a removed model's counters, so that a few Prometheus servers get its last counts.
SHOWN_SCRAPES = 10
# Largest number of removed models whose counters are shown; the one that was removed first is forgotten first. Without
# this limit, a server that nobody scrapes would keep all of them.
MOST_SHOWN = 1000


class GoneModels:
    """The removed models whose counters are still shown. Concurrency: any thread."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._present: frozenset[str] = frozenset()
        # Removed model -> number of the last scrape that has shown its counters, from 0; -1: none has. In the order of
        # the removals.
        self._scrapes: dict[str, int] = {}

    def note(self, models: Collection[str], scrapes: int = 0) -> None:
        """Forgets models that were removed some scrapes ago.

        Args:
          models: the models that are served now, or whose versions are not unloaded yet.
        """
        with self._lock:
            for name in self._present.difference(models):
                # The next scrape, or this one, is scrape number 0 of the model.
                self._scrapes[name] = -1
            self._present = frozenset(models)
            shown = {name: last + scrapes for name, last in self._scrapes.items() if name not in self._present}
            newest = list(shown)[-MOST_SHOWN:]
            self._scrapes = {name: shown[name] for name in newest if shown[name] < SHOWN_SCRAPES}
            forgotten = shown.keys() - self._scrapes.keys()
        for name in forgotten:
            self._forget(name)


class Metrics:
    """The metrics of one server: its counters, and the text of all of them. Concurrency: any thread.

    requests: the engine's Observer of finished requests. warmups, auth, tls: counters that the parts of the server
      report to.
    core: returns the native core's last counts. limit_bytes: the limit on bytes in flight.
    dropped_spans: returns how many requests for traces the native core has dropped.

    Args:
      loaded: returns the loaded servables, whose tables have counts of their own.
      models: returns the names of the models that are served, or whose versions are not unloaded yet.
      forget: functions that drop a model's counts in the families of `more`.
    """

    def __init__(
        self,
        loaded: Callable[[], Sequence[LoadedServable]],
        more: Sequence[Callable[[], list[str]]] = (),
        notes: Notes | None = None,
        batches: Callable[[], Batches] = Batches,
        *,
        models: Callable[[], Collection[str]] = frozenset,
        forget: Sequence[Callable[[str], None]] = (),
    ) -> None:
        self.requests = RequestCounter(notes)
        self.batches = batches
        self.warmups = WarmupCounter()
        self.core: Callable[[], CoreCounts] = CoreCounts
        self.limit_bytes: int | None = None
        self.dropped_spans: Callable[[], int] = int
        self.auth = ReloadCounter()
        self.tls = TlsCounter()
        self._loaded = loaded
        self._more = more
        self._versions = VersionStates()
        self._models = models
        parts = (self.requests, self.warmups, self._versions)
        self._forgetting = [*(part.forget for part in parts), *forget]
        self._gone = GoneModels(self._forget)

    def version_changed(self, model: str, status: VersionStatus) -> None:
        self._versions.changed(model, status)
        if status.state is State.END:
            # An ended version's counts of requests and warm-ups are dropped, because new versions may come all day, and
            # each would leave its counts in memory.
            self.requests.retire(model, status.version)
            self.warmups.retire(model, status.version)
            # The version may have been the last one of a removed model.
            self._gone.note(self._models())

    def _forget(self, model: str) -> None:
        for forget in self._forgetting:
            forget(model)

    def read_files(self) -> ReadFiles:
        return ReadFiles(self.tls.ends_s(), self.auth.is_current)

    def render(self) -> tuple[bytes, str]:
        self._gone.note(self._models(), scrapes=1)
        now, ever = self.requests.read()
        lines = (
            request_lines(now)
            + control_lines(self.requests.control())
            + self._versions.lines()
            + servable_lines(self._loaded())
        )
        lines += self.tls.lines() + _trace_lines(self.dropped_spans())
        batches = self.batches()
        lines += batch_lines(batches)
        lines += admission_lines(self.core(), self.limit_bytes) + self.auth.lines() + delta_lines(self._loaded())
        lines += core_lines(self._loaded())
        lines += hot_rows_lines(self._loaded())
        for read in self._more:
            lines += read()
        lines += serving_lines(Counted(ever, self.warmups.read(), batches))
        text = "".join(f"{line}\n" for line in lines)
        return self._process_text() + text.encode(), CONTENT_TYPE

    @cached_property
    def _process_text(self) -> Callable[[], bytes]:
        # prometheus_client is imported only here: it imports an HTTP server, and takes 13 ms of the server's start.
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        return partial(generate_latest, registry)


def _trace_lines(dropped: int) -> list[str]:
    name = "embedding_server_trace_requests_dropped_total"
    about = "Requests chosen for a trace whose spans were dropped, because too many wait for Python."
    return series(name, about, [({}, dropped)])
