"""Starts and ends the models' request logs, as the list of models configures them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from service.engine.model_config import ModelConfig, RequestLogConfig
from service.engine.recording import Recorder
from service.observe.metric_text import family, labels, sample
from service.observe.model_log import LogCounts, ModelLog
from service.observe.record_files import RecordFiles

logger = logging.getLogger(__name__)

_STOP_S = 5.0
_PREFIX = "embedding_server_request_log_"


class RequestLogs:
    """The running request logs, at most one for each model. Concurrency: any thread.

    recorders: model -> recorder; empty if no model has a logging_config.

    Args:
      tags: tags of the MetaGraph that is served.
      max_bytes, max_files: limits of each prefix, as in RecordFiles.
    """

    def __init__(
        self,
        *,
        tags: Sequence[str],
        max_bytes: int,
        max_files: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.recorders: dict[str, Recorder] = {}
        self._tags = tuple(tags)
        self._max_bytes, self._max_files = max_bytes, max_files
        self._now = now
        self._changing = threading.Lock()
        self._logs: dict[str, tuple[RequestLogConfig, ModelLog]] = {}
        # Logs that still write their queued records, and model -> counts of its logs that have ended; kept, because
        # metric counters must not decrease.
        self._ending: list[tuple[str, ModelLog]] = []
        self._ended: dict[str, LogCounts] = {}

    def configure(self, models: Sequence[ModelConfig]) -> None:
        """Starts the request logs that a new list of models configures, and ends those that it lacks or configures
        otherwise, without a wait for their last records: a disk may be slow.
        """
        wanted = {model.name: model.request_log for model in models if model.request_log is not None}
        with self._changing:
            for name, (config, log) in list(self._logs.items()):
                if wanted.get(name) != config:
                    del self._logs[name]
                    self.recorders.pop(name, None)
                    log.stop()
                    self._ending.append((name, log))
            for name, config in wanted.items():
                if name not in self._logs and config.sampling_rate > 0:
                    log = self._begin(name, config)
                    self._logs[name] = (config, log)
                    self.recorders[name] = log

    def stop(self) -> None:
        """Ends all request logs, and waits a few seconds at most until their queued records are written."""
        self.configure([])
        end_s = time.monotonic() + _STOP_S
        for _, log in self._ending:
            log.wait(max(end_s - time.monotonic(), 0.0))

    def read(self) -> dict[str, dict[str, object]]:
        with self._changing:
            logs = dict(self._logs)
        return {
            name: {"prefix": config.filename_prefix, "sampling_rate": config.sampling_rate, **log.counts()._asdict()}
            for name, (config, log) in logs.items()
        }

    def forget(self, model: str) -> None:
        with self._changing:
            self._ended.pop(model, None)

    def metric_lines(self) -> list[str]:
        with self._changing:
            ending, self._ending = self._ending, []
            for name, log in ending:
                if log.is_over:
                    self._ended[name] = _sum(self._ended.get(name), log.counts())
                else:
                    self._ending.append((name, log))
            counts = dict(self._ended)
            running = [(name, log) for name, (_, log) in self._logs.items()]
            for name, log in self._ending + running:
                counts[name] = _sum(counts.get(name), log.counts())
        lines: list[str] = []
        for part, kind, about, place in (
            ("records_total", "counter", "Requests written to the request log.", 0),
            ("dropped_total", "counter", "Requests chosen for the log and not written: queue full, or disabled.", 1),
            ("disabled", "gauge", "1: an error, such as a full disk, ended the request log.", 2),
        ):
            lines += family(_PREFIX + part, kind, about)  # type: ignore[arg-type]
            lines += [
                sample(_PREFIX + part, labels({"model": name}), float(found[place]))
                for name, found in sorted(counts.items())
            ]
        return lines

    def _begin(self, name: str, config: RequestLogConfig) -> ModelLog:
        files = RecordFiles(config.filename_prefix, max_bytes=self._max_bytes, max_files=self._max_files, now=self._now)
        extra = {"model": name, "prefix": config.filename_prefix, "rate": config.sampling_rate}
        logger.info("request log", extra=extra)
        return ModelLog(name, config, files, tags=self._tags)


def _sum(before: LogCounts | None, now: LogCounts) -> LogCounts:
    if before is None:
        return now
    return LogCounts(before.written + now.written, before.dropped + now.dropped, now.is_disabled)
