"""Writes lines to a file descriptor in a thread of its own, so that no caller waits for the reader of a log."""

from __future__ import annotations

import mmap
import os
import select
import struct
import threading
import time
from collections.abc import Callable

# Size in bytes of the buffer for lines that are not written yet: some 4,000 lines.
BUFFER_BYTES = 1 << 20
# The buffer's head: how many bytes were ever written to the descriptor, and how many were ever put into the buffer.
# native/src/last_words.rs reads the same.
_HEAD = struct.Struct("=QQ")
_WRITE_BYTES = 1 << 16
_LOOK_AGAIN_S = 0.02


class LogWriter:
    """A thread that writes lines to a file descriptor, and the bounded ring buffer of lines that wait for it.

    While the descriptor accepts no bytes, lines beyond the buffer are dropped and counted. Once the buffer is empty
    again, `report` gets the number of lines dropped. The buffer is shared memory and no Python object, so that the
    native core can write its lines when the process crashes. Concurrency: any thread, also from a finalizer.

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
                return
            self._append(line)
            self._news.notify()

    def flush(self, timeout_s: float) -> bool:
        """Waits until all lines are written, at most timeout_s seconds; returns whether they are."""
        end_s = time.monotonic() + timeout_s
        while self._put > self._written or self._unreported:
            if time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def stop(self, timeout_s: float) -> bool:
        """Writes the lines that wait, for at most timeout_s seconds, and ends the thread; returns whether it ended."""
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
        try:
            return os.write(self.descriptor, part), 0
        except BlockingIOError:
            # Another program has made the descriptor non-blocking: its open file is shared.
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            poll.poll(1000)
            return 0, 0
        except OSError:
            # The reader is gone, or its disk is full: these lines are lost, and there is no place to say so.
            return len(part), bytes(part).count(b"\n")
