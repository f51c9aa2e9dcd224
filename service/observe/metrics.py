"""Collects all metrics of one server, and writes them as Prometheus text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

from service.engine.admission_limits import Limits
from service.engine.servable import LoadedServable
from service.observe.admission_metrics import AdmissionCounter
from service.observe.attention import ReadFiles
from service.observe.batch_metrics import Batches
from service.observe.gone_models import GoneModels
from service.observe.hot_rows_metrics import hot_rows_lines
from service.observe.metric_text import CONTENT_TYPE, family, sample
from service.observe.own_metric_names import batch_lines, request_lines, servable_lines
from service.observe.reload_metrics import ReloadCounter
from service.observe.request_metrics import Notes, RequestCounter
from service.observe.serving_metric_names import Counted, serving_lines
from service.observe.tls_metrics import TlsCounter
from service.observe.version_metrics import VersionStates, core_lines, delta_lines
from service.observe.warmup_metrics import WarmupCounter
from service.types import State, VersionStatus


class Metrics:
    """The metrics of one server: its counters, and the text of all of them. Concurrency: any thread.

    requests: the engine's Observer of finished requests. warmups, admission, auth, tls: counters that the parts of the
      server report to.
    dropped_spans: returns how many requests for traces the native core has dropped.
    held: returns the bytes in flight, set once the engine exists; limits: the limits on these.

    Args:
      loaded: returns the loaded servables, whose tables have counts of their own.
      more: functions that return the lines of further families.
      notes: gets the requests that are slow or fail.
      batches: returns the counts of batches of graph runs.
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
        self.admission = AdmissionCounter()
        self.held: Callable[[], Mapping[str, int]] = dict
        self.limits: Limits | None = None
        self.dropped_spans: Callable[[], int] = int
        self.auth = ReloadCounter()
        self.tls = TlsCounter()
        self._loaded = loaded
        self._more = more
        self._versions = VersionStates()
        self._models = models
        parts = (self.requests, self.warmups, self.admission, self._versions)
        self._forgetting = [*(part.forget for part in parts), *forget]
        self._gone = GoneModels(self._forget)

    def version_changed(self, model: str, status: VersionStatus) -> None:
        """Records a version's new state; at its END, drops the version's counts of requests and warm-ups."""
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
        """Returns the state of certificates and of --auth_config, for the status page."""
        return ReadFiles(self.tls.ends_s(), self.auth.is_current)

    def render(self) -> tuple[bytes, str]:
        self._gone.note(self._models(), scrapes=1)
        now, ever = self.requests.read()
        lines = request_lines(now) + self._versions.lines() + servable_lines(self._loaded())
        lines += self.tls.lines() + _trace_lines(self.dropped_spans())
        batches = self.batches()
        lines += batch_lines(batches)
        lines += self.admission.lines(self.held(), self.limits) + self.auth.lines() + delta_lines(self._loaded())
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
    return [*family(name, "counter", about), sample(name, "", float(dropped))]
