"""Writes the process's log, in lines of text for a person or of JSON for machines.

A record's attribute `told` is the text for a person in place of its message and extras; "" hides the record. JSON lines
have no `told`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.observe.log_writer import LogWriter
from service.observe.metric_text import family, labels, sample

# Largest number of log lines that one logger may write at one level: in a burst, and then per second. Without these
# limits, a client that sends bad requests without pause would fill a disk with tens of megabytes of log a second.
LINES_AT_ONCE, LINES_PER_S = 500, 20
_FLUSH_S = 2.0
# The folders whose messages below "warning" are about the inside of the server: text for a person leaves them out,
# unless they have `told` or the level is "debug".
_INSIDE = tuple(f"service.{folder}." for folder in ("engine", "tables", "graph", "loading", "native"))


@dataclass(slots=True)
class _Allowance:
    """A count of the lines that a logger may still write at one level, and of the lines dropped since the last one."""

    lines: float
    since_s: float
    left_out: int = 0


class LineLimit(logging.Filter):
    """Filter that drops lines of a logger beyond a rate. The next line that passes has the number of the dropped ones.

    Concurrency: any thread.

    dropped: the number of all lines dropped.

    Args:
      clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.dropped = 0
        self._clock = clock
        # The lock is re-entrant, because a finalizer that logs can run in a thread that holds the lock.
        self._lock = threading.RLock()
        self._allowances: dict[tuple[str, int], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether a log line is within the limits; adds `left_out` to the first line after dropped ones."""
        now_s = self._clock()
        # The native core leaves out lines on refusals by the same limits.
        self.dropped += getattr(record, "left_out", 0)
        with self._lock:
            known = self._allowances.setdefault((record.name, record.levelno), _Allowance(LINES_AT_ONCE, now_s))
            known.lines = min(LINES_AT_ONCE, known.lines + (now_s - known.since_s) * LINES_PER_S)
            known.since_s = now_s
            if known.lines < 1:
                known.left_out += 1
                self.dropped += 1
                return False
            known.lines -= 1
            if known.left_out:
                record.left_out = known.left_out + getattr(record, "left_out", 0)
                known.left_out = 0
        return True


class LogHandler(logging.Handler):
    """Handler that gives formatted lines to a LogWriter, and counts the lines that are dropped."""

    def __init__(self, writer: LogWriter, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._limit = LineLimit()
        self.addFilter(self._limit)
        self._writer = writer
        writer.report = self._report

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:
            self.handleError(record)
        else:
            self._writer.write(line)

    def flush(self) -> None:
        self._writer.flush(_FLUSH_S)

    def counts(self) -> dict[str, int]:
        return {"output": self._writer.dropped, "rate": self._limit.dropped}

    def _line(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"

    def _report(self, dropped: int) -> bytes:
        message = "log lines dropped: standard error was not read"
        fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": message}
        return self._line(logging.makeLogRecord(fields | {"left_out": dropped}))


def configure_logging(level: str, log_format: str, writer: LogWriter) -> None:
    as_text = log_format == "text" or (log_format == "auto" and os.isatty(writer.descriptor))
    root = logging.getLogger()
    handler = LogHandler(writer, _TextFormatter() if as_text else _JsonFormatter())
    if as_text and level != "debug":
        handler.addFilter(_is_for_person)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # uvicorn's lines below "warning" are dropped: process.app logs start and stop itself, and uvicorn's lines have
    # terminal colours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def dropped_line_metrics() -> list[str]:
    name = "embedding_server_log_lines_dropped_total"
    about = "Log lines not written: standard error takes no more (output), or too many lines in a short time (rate)."
    counts = [handler.counts() for handler in logging.getLogger().handlers if isinstance(handler, LogHandler)]
    totals = {reason: sum(count[reason] for count in counts) for reason in ("output", "rate")}
    return family(name, "counter", about) + [
        sample(name, labels({"reason": reason}), float(total)) for reason, total in totals.items()
    ]


def name_requests_in_log(current_id: Callable[[], bytes]) -> None:
    """Adds the current request's id to each log line that has none.

    Args:
      current_id: returns the current request's id; b"" outside of requests.
    """

    def name_request(record: logging.LogRecord) -> bool:
        own_id = current_id()
        if own_id and not hasattr(record, "request_id"):
            record.request_id = own_id.decode("latin-1")
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(name_request)


_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "told"}


def _is_for_person(record: logging.LogRecord) -> bool:
    told: str | None = getattr(record, "told", None)
    if told is not None:
        return told != ""
    return record.levelno >= logging.WARNING or not record.name.startswith(_INSIDE)


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
        if told := getattr(record, "told", ""):
            return f"{time} {told}"
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        text = f"{time} {record.levelname.lower():<7} {record.getMessage()}{extras}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
