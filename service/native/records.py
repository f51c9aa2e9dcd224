"""Takes the records of sampled requests from the native core: entries for the request logs, and spans of traces."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from service.engine.recording import Recorder
from service.engine.tracing import Tracing

if TYPE_CHECKING:
    from service.native.edge import Edge, Records

logger = logging.getLogger(__name__)

_WAIT_S = 10.0
_STOP_S = 5.0


class SampledRequests:
    """The thread that takes the native core's records. Concurrency: any thread; call start() and stop() once each.

    dropped_spans: number of requests for traces that the core has dropped.

    Args:
      recorders: the request logs, by model.
      tracing: makes the spans; None: nothing is traced.
      on_damage: called with a model's name when a request found the model's files damaged.
    """

    def __init__(
        self, recorders: Mapping[str, Recorder], tracing: Tracing | None, on_damage: Callable[[str], None]
    ) -> None:
        self._on_damage = on_damage
        self._recorders = recorders
        self._tracing = tracing
        self.dropped_spans = 0
        self._thread: threading.Thread | None = None

    def start(self, edge: Edge) -> None:
        self._thread = threading.Thread(target=self._run, args=(edge.take_records,), name="native-records", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits until the records of the last requests are taken, a few seconds at most; the core must be closed."""
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _run(self, take: Callable[[float], Records | None]) -> None:
        while (taken := take(_WAIT_S)) is not None:
            try:
                self._pass_on(taken)
            except Exception:
                # One bad batch must not end the thread, because records of later requests would be lost silently.
                logger.exception("records of sampled requests could not be passed on")

    def _pass_on(self, taken: Records) -> None:
        entries, spans, dropped, dropped_spans, damaged = taken
        for model in damaged:
            self._on_damage(model)
        self.dropped_spans += dropped_spans
        for model, version, signature_name, answered_s, log in entries:
            # A log may have ended since the core answered the request.
            if (recorder := self._recorders.get(model)) is not None:
                recorder.answered(version, signature_name, answered_s, log)
        for model, count in dropped.items():
            if (recorder := self._recorders.get(model)) is not None:
                recorder.note_dropped(count)
        if self._tracing is not None and spans != "[]":
            self._tracing.answered(json.loads(spans))
