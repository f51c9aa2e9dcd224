"""Metrics and structured logs. One set per process, built by app.py and handed to whoever reports to it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from service.core.errors import ServiceError
from service.core.types import State, VersionStatus

# Lookups take microseconds and cold graph runs seconds: 20 us to 10 s, about 2.5-fold steps.
_SECONDS_BUCKETS = (2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Prometheus metrics of one server; implements core.engine.Observer. Concurrency: any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        labels = ("api", "model", "version", "signature")
        self._requests = Counter(
            "embedding_server_requests",
            "Requests finished, by canonical code.",
            (*labels, "code"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "embedding_server_request_seconds",
            "Time from resolving the model to the encoded answer, of requests that succeeded.",
            labels,
            buckets=_SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._rows = Counter(
            "embedding_server_rows", "Rows (examples) of requests that succeeded.", labels, registry=self._registry
        )
        self._state = Gauge(
            "embedding_server_version_state",
            "State of each model version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END.",
            ("model", "version"),
            registry=self._registry,
        )
        # labels() costs more than counting; a handful of label sets take all the traffic.
        self._succeeded: dict[tuple[str, str, int | None, str], tuple[Counter, Histogram, Counter]] = {}

    def finished(
        self,
        *,
        api: str,
        model: str,
        version: int | None,
        signature: str,
        error: BaseException | None,
        seconds: float,
        rows: int,
    ) -> None:
        """Counts one request; see core.engine.Observer."""
        if error is not None:
            code: str = error.code if isinstance(error, ServiceError) else "INTERNAL"
            if not isinstance(error, Exception):
                code = "CANCELLED"  # an asyncio cancellation: the client left
            self._requests.labels(api, model, _text(version), signature, code).inc()
            return
        key = (api, model, version, signature)
        children = self._succeeded.get(key)
        if children is None:
            names = (api, model, _text(version), signature)
            children = (
                self._requests.labels(*names, "OK"),
                self._seconds.labels(*names),
                self._rows.labels(*names),
            )
            self._succeeded[key] = children
        children[0].inc()
        children[1].observe(seconds)
        children[2].inc(rows)

    def version_changed(self, model: str, status: VersionStatus) -> None:
        """Records a state of a version; UNKNOWN: a failure is no longer told of."""
        if status.state is State.UNKNOWN:
            self._state.remove_by_labels({"model": model, "version": str(status.version)})
            return
        self._state.labels(model, str(status.version)).set(status.state)
        if status.state is State.END:
            # Models change all day: what is kept per version must go with it. A failure stays visible, as in status.
            self._forget(model, status.version)
            if status.code == "OK":
                self._state.remove(model, str(status.version))

    def _forget(self, model: str, version: int) -> None:
        for key in [k for k in self._succeeded if k[1] == model and k[2] == version]:
            del self._succeeded[key]
        for metric in (self._requests, self._seconds, self._rows):
            metric.remove_by_labels({"model": model, "version": str(version)})

    @property
    def registry(self) -> CollectorRegistry:
        """Where parts that are not in every server add what they count."""
        return self._registry

    def render(self) -> tuple[bytes, str]:
        """Returns the exposition text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def configure_logging(level: str, log_format: str) -> None:
    """Sends the process's log to standard error, as text or JSON."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter() if as_text else _JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # App reports start and stop itself; uvicorn's own lines say the same with terminal colours in them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _OWN_FIELDS and v is not None}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        text = f"{time} {record.levelname.lower():<7} {record.getMessage()}{extras}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _text(version: int | None) -> str:
    return "" if version is None else str(version)
