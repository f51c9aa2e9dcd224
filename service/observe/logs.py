"""Writes the log of the process in lines of text for a person or of JSON for machines.

A record's attribute `told` is the text for a person in place of its message and extras; "" hides the record. JSON lines
have no `told`. Lines that native libraries, such as TensorFlow, write to standard output or standard error become
records, too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import mmap
import os
import re
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.observe.metric_text import series

# Size in bytes of the buffer for lines that are not written yet: some 4,000 lines.
BUFFER_BYTES = 1 << 20
# The buffer's head: how many bytes were ever written to the descriptor, and how many were ever put into the buffer.
# native/src/last_words.rs reads the same.
_HEAD = struct.Struct("=QQ")
_WRITE_BYTES = 1 << 16
_LOOK_AGAIN_S = 0.02


class LogWriter:
    """A thread that writes lines to a file descriptor, and the bounded ring buffer of lines that wait for it.

    While the descriptor accepts no bytes, lines beyond the buffer are dropped and counted, and so are lines that the
    system refuses. Before the next line, `report` gets the number of lines dropped. The buffer is shared memory and no
    Python object, so that the native core can write its lines when the process crashes. Concurrency: any thread, also
    from a finalizer.

    Args:
      descriptor: where the lines go. The writer does not close it.
      report: returns the line that says how many lines were dropped.
    """

    def __init__(self, descriptor: int, report: Callable[[int], bytes] = lambda dropped: b"") -> None:
        self.descriptor = descriptor
        self.report = report
        self.memory = mmap.mmap(-1, _HEAD.size + BUFFER_BYTES)
        # The lock is re-entrant, because a finalizer that logs can run in a thread that holds the lock.
        self._news = threading.Condition(threading.RLock())
        self._written = self._put = 0
        self._dropped = self._unreported = 0
        # Of the thread: the number of lines that the system has refused since the last one that it took, whether that
        # one lacks its end, and whether the next bytes are the rest of a refused line.
        self._refused = 0
        self._is_cut = self._is_within_line = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._dropped

    def write(self, line: bytes) -> None:
        """Puts a line, with its end, into the buffer, or drops it if the buffer is full; never waits."""
        with self._news:
            # After a dropped line, all lines are dropped until the buffer is empty: the report stands where they would.
            if self._unreported or self._put - self._written + len(line) > BUFFER_BYTES:
                self._unreported += 1
                self._dropped += 1
            else:
                self._append(line)
            # Also for a dropped line: a line that is larger than the buffer is dropped while the buffer is empty.
            self._news.notify()

    def flush(self, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while self._put > self._written or self._unreported:
            if time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def stop(self, timeout_s: float) -> bool:
        self.flush(timeout_s)
        with self._news:
            self._is_stopped = True
            self._news.notify()
        self._thread.join(_LOOK_AGAIN_S if self._put > self._written else timeout_s)
        return not self._thread.is_alive()

    def _append(self, line: bytes) -> None:
        start = self._put % BUFFER_BYTES
        first = line[: BUFFER_BYTES - start]
        for place, part in ((start, first), (0, line[len(first) :])):
            self.memory[_HEAD.size + place : _HEAD.size + place + len(part)] = part
        self._put += len(line)
        self._show()

    def _show(self) -> None:
        _HEAD.pack_into(self.memory, 0, self._written, self._put)

    def _run(self) -> None:
        view = memoryview(self.memory)[_HEAD.size :]
        while True:
            with self._news:
                self._news.wait_for(lambda: self._put > self._written or self._unreported or self._is_stopped)
                if self._put == self._written and self._unreported:
                    self._append(self.report(self._unreported))
                    self._unreported = 0
                start = self._written % BUFFER_BYTES
                size = min(self._put - self._written, BUFFER_BYTES - start, _WRITE_BYTES)
                if self._is_stopped and not size:
                    return
            done, refused = self._write(view[start : start + size])
            with self._news:
                self._written += done
                self._dropped += refused
                self._show()

    def _write(self, part: memoryview) -> tuple[int, int]:
        """Returns how many bytes need no further write, and how many lines of them the system refused to write."""
        if self._is_within_line:
            # The system refused the beginning of this line, so its rest is left out, too.
            rest = bytes(part).find(b"\n") + 1
            self._is_within_line = not rest
            self._refused += bool(rest)
            return rest or len(part), int(bool(rest))
        try:
            if self._refused:
                # A full disk may have taken only the beginning of a line.
                told = b"\n" * self._is_cut + self.report(self._refused)
                done = os.write(self.descriptor, told)
                self._is_cut = done < len(told)
                if self._is_cut:
                    return 0, 0
                self._refused = 0
            done = os.write(self.descriptor, part)
            self._is_cut = bytes(part[done - 1 : done]) != b"\n"
            return done, 0
        except BlockingIOError:
            # Another program has made the descriptor non-blocking: its open file is shared.
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            poll.poll(1000)
            return 0, 0
        except OSError:
            # The reader is gone, or its disk is full: these lines are lost, which the next line that is written tells.
            refused = bytes(part).count(b"\n")
            self._refused += refused
            self._is_within_line = bytes(part[-1:]) != b"\n"
            return len(part), refused


# Largest number of log lines that one logger may write at one level: in a burst, and then per second. Without these
# limits, a client that sends bad requests without pause would fill a disk with tens of megabytes of log a second.
LINES_AT_ONCE, LINES_PER_S = 500, 20
_FLUSH_S = 2.0
# The folders whose messages below "warning" are about the inside of the server: text for a person leaves them out,
# unless they have `told` or the level is "debug".
_INSIDE = tuple(f"service.{one}." for one in "versions search control tables graph loading core".split())


# Characters from which a line is made anew with at most _MAX_CHARACTERS of each text. One that does not fit into the
# buffer would be dropped.
_LONG_LINE, _MAX_CHARACTERS = 64_000, 8_000


def _shortened(record: logging.LogRecord) -> logging.LogRecord:
    texts: dict[str, object] = {"msg": record.getMessage(), "told": getattr(record, "told", None), **_extras(record)}
    if record.exc_info:
        texts["traceback"] = logging.Formatter().formatException(record.exc_info)
    cut = {name: _cut(value) for name, value in texts.items()}
    return logging.makeLogRecord({**vars(record), **cut, "args": None, "exc_info": None})


def _cut(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}...TRUNCATED"


@dataclass(slots=True)
class _Allowance:
    lines: float
    since_s: float
    left_out: int = 0


class LineLimit(logging.Filter):
    """Filter that drops lines of a logger beyond a rate. The next line that passes has the number of the dropped ones.

    Concurrency: any thread.

    dropped: the number of all lines dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.dropped = 0
        self._clock = clock
        # The lock is re-entrant, because a finalizer that logs can run in a thread that holds the lock.
        self._lock = threading.RLock()
        self._allowances: dict[tuple[str, int], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
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
        line = self.format(record)
        if len(line) > _LONG_LINE:
            line = self.format(_shortened(record))
        return line.encode("utf-8", "backslashreplace") + b"\n"

    def _report(self, dropped: int) -> bytes:
        message = "log lines dropped: standard error took no more"
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
    return series(name, about, [({"reason": reason}, total) for reason, total in totals.items()])


def name_requests_in_log(current_id: Callable[[], bytes]) -> None:
    """Adds the current request's id (b"" outside of requests) to each log line that has none."""

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


# Control characters, as text shows them. Names that clients choose may have some: a line break would begin a line that
# looks like the server's own, and an escape sequence would change what a terminal shows. A message of native libraries
# has line breaks of its own.
_SHOWN = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}
_SHOWN_IN_MESSAGE = {code: shown for code, shown in _SHOWN.items() if code != ord("\n")}


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        if told := getattr(record, "told", ""):
            return f"{time} {told.translate(_SHOWN)}"
        extras = "".join(f" {key}={str(value).translate(_SHOWN)}" for key, value in _extras(record).items())
        text = f"{time} {record.levelname.lower():<7} {record.getMessage().translate(_SHOWN_IN_MESSAGE)}{extras}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


logger = logging.getLogger("native")

# Pattern of log lines of absl ("I0000 00:00:1795448396.756353   30164 port.cc:153] text") and of TensorFlow
# ("2026-11-23 15:39:57.206753: W tensorflow/core/file.cc:210] text").
_LINE = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? (\S+:\d+)\] (.*)")
# Libraries note at level I what no operator acts on, such as that TensorFlow found no GPU.
_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
# What absl writes before its first line.
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
# Size of the socket buffer for lines that are not logged yet. If it is full, the socket refuses further bytes: a native
# library that waited while it holds the interpreter's lock would wait for ever, because the thread that empties the
# buffer needs the lock.
_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 16
# Pause before the lines of one burst are read, so that a traceback, which is written line by line, is one record.
_BURST_S = 0.01
_END_S = 2.0


@contextlib.contextmanager
def native_lines_in_log(writer: LogWriter) -> Iterator[None]:
    """Redirects standard output and standard error into the server's log; `writer` has the former standard error.

    No write to them waits. Consecutive lines without a level of their own are one warning. If the process crashes, the
    native core writes the lines that are not logged or not written yet.
    """
    _flush()
    own = (1, 2)
    former = [os.dup(descriptor) for descriptor in own]
    # The descriptors lead to a socket and not to a pipe, because the thread that logs their lines can peek at the bytes
    # in a socket, and leave them there until they are logged.
    reader, end = socket.socketpair()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    end.setblocking(False)
    for descriptor in own:
        os.dup2(end.fileno(), descriptor)
    end.close()
    _keep_last_words(reader.fileno(), writer)
    thread = threading.Thread(target=_log_lines, args=(reader,), name="native-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _flush()
        # The socket stays open if the log's reader takes no bytes: the interpreter, which may still write a traceback,
        # would wait for that reader.
        if writer.flush(_END_S):
            for descriptor, before in zip(own, former, strict=True):
                os.dup2(before, descriptor)
            # The wait for the thread's end is limited: a child process may have inherited standard error, so that the
            # thread never sees the end of the socket's bytes.
            thread.join(_END_S)
            writer.flush(_END_S)
            _keep_last_words(-1, None)
            reader.close()
        for descriptor in former:
            os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def _keep_last_words(lines: int, writer: LogWriter | None) -> None:
    with contextlib.suppress(ImportError):
        core = importlib.import_module("service._native")
        core.keep_last_words(lines, *((-1, None) if writer is None else (writer.descriptor, writer.memory)))


def _log_lines(reader: socket.socket) -> None:
    rest = b""
    while reader.recv(1, socket.MSG_PEEK):
        time.sleep(_BURST_S)
        data = reader.recv(_READ_BYTES, socket.MSG_PEEK)
        end = data.rfind(b"\n") + 1
        _log((rest + data[:end]).splitlines())
        rest = b"" if end else rest + data
        reader.recv(end or len(data))
    _log([rest])


def _log(lines: list[bytes]) -> None:
    plain: list[str] = []
    for line in lines:
        text = line.decode("utf-8", "backslashreplace").rstrip()
        if found := _LINE.fullmatch(text.strip()):
            _warn(plain)
            plain = []
            level, source, message = found.groups()
            logger.log(_LEVELS[level], "%s", message, extra={"source": source})
        elif text and text != _PREAMBLE:
            plain.append(text)
    _warn(plain)


def _warn(lines: list[str]) -> None:
    if lines:
        logger.warning("%s", "\n".join(lines))
