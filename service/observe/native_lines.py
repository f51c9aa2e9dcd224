"""Turns lines that native libraries, such as TensorFlow, write to standard error into records of the server's log."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator

logger = logging.getLogger("native")

# Pattern of log lines of absl ("I0000 00:00:1795448396.756353   30164 port.cc:153] text") and of TensorFlow
# ("2026-11-23 15:39:57.206753: W tensorflow/core/file.cc:210] text").
_LINE = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? (\S+:\d+)\] (.*)")
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
# Size of the socket buffer for lines on standard error that are not logged yet; large, because a native library that
# writes to a full buffer while it holds the interpreter's lock would wait for ever: the thread that empties the buffer
# needs the lock.
_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_END_S = 2.0


@contextlib.contextmanager
def native_lines_in_log() -> Iterator[None]:
    """Redirects standard error into the server's log, and the log itself to the former standard error.

    A line without a level of its own is logged as a warning. If the process aborts, the native core writes the lines
    that are not logged yet as they are. Records that can not be written, because the reader of the log is gone or its
    disk is full, are lost without a word.
    """
    sys.stderr.flush()
    standard_error = os.dup(2)
    # Standard error leads to a socket and not to a pipe, because the thread that logs its lines can peek at a socket's
    # bytes, and leave them there until they are logged.
    reader, writer = socket.socketpair()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    os.dup2(writer.fileno(), 2)
    writer.close()
    _keep_last_words(reader.fileno(), standard_error)
    thread = threading.Thread(target=_log_lines, args=(reader,), name="native-lines", daemon=True)
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    log = open(standard_error, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    streams = [handler.setStream(log) for handler in handlers]
    # Python's logging reports a failed write of the log on standard error, which leads to the log here: each report
    # would be a new record, whose write may fail too. So these reports are off.
    raises, logging.raiseExceptions = logging.raiseExceptions, False
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(standard_error, 2)
        # The wait for the thread's end is limited: a child process may have inherited standard error, so that the
        # thread never sees the end of the socket's bytes.
        thread.join(_END_S)
        _keep_last_words(-1, -1)
        reader.close()
        logging.raiseExceptions = raises
        for handler, stream in zip(handlers, streams, strict=True):
            with contextlib.suppress(OSError):
                handler.setStream(stream)
        with contextlib.suppress(OSError):
            log.close()


def _keep_last_words(lines: int, standard_error: int) -> None:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("service._native").keep_last_words(lines, standard_error)


def _log_lines(reader: socket.socket) -> None:
    rest = b""
    while data := reader.recv(_READ_BYTES, socket.MSG_PEEK):
        end = data.rfind(b"\n") + 1
        for line in (rest + data[:end]).splitlines():
            _log(line)
        rest = b"" if end else rest + data
        reader.recv(end or len(data))
    _log(rest)


def _log(line: bytes) -> None:
    text = line.decode("utf-8", "backslashreplace").strip()
    if found := _LINE.fullmatch(text):
        level, source, message = found.groups()
        logger.log(_LEVELS[level], "%s", message, extra={"source": source})
    elif text:
        logger.warning("%s", text)
