"""Turns lines that native libraries, such as TensorFlow, write to standard output or standard error into records of the
server's log.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator

from service.observe.log_writer import LogWriter

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
