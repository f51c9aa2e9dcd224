"""One worker as the supervising process sees it: a process, and the messages to and from it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from service.workers.messages import BadFrame, Frames, Message, encode

# What a worker is started with: the same code as its parent, whatever folder it is started from.
_START = "import sys; sys.path.insert(0, {root!r}); from service.workers.worker import main; sys.exit(main({control}))"
_ROOT = str(Path(__file__).parents[2])


class WorkerProcess:
    """A worker that was started. Concurrency: the supervising process's event loop only.

    number: which start of any worker it is. place: which of the N it is. why_not: what keeps it from starting, in its
    own words; "" where it said nothing.
    """

    def __init__(self, number: int, place: int, process: subprocess.Popen[bytes], writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.place = place
        self.is_listening = False
        self.why_not = ""
        self._process = process
        # Opened at once: a signal that comes too late reaps the process, and then its id means nothing.
        self._descriptor = os.pidfd_open(process.pid)
        self._writer = writer
        self.ended = asyncio.Event()

    @classmethod
    async def start(
        cls,
        number: int,
        place: int,
        *,
        hello: dict[str, Any],
        descriptors: Sequence[int],
        on_message: Callable[[WorkerProcess, Message], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> WorkerProcess:
        """Starts a process and greets it.

        Args:
          hello: what it is to do, see service/workers/worker.py.
          descriptors: what it inherits, under the same numbers.
          on_end: called once it is gone and all that it said was heard.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # It returns when the new program runs, in a few milliseconds.
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-P", "-c", _START.format(root=_ROOT, control=theirs.fileno())],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                # Not among those that a terminal's Ctrl-C reaches: the parent tells each of them once.
                process_group=0,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = cls(number, place, process, writer)
        worker.send("hello", **hello)
        worker._reading = asyncio.create_task(worker._read(reader, on_message, on_end))
        return worker

    _reading: asyncio.Task[None]

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def how_it_ended(self) -> str:
        """Its exit status or signal, in words."""
        code = self._process.poll()
        if code is None:
            return "running"
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    @property
    def is_busy(self) -> bool:
        """Whether it has not read what it was sent before."""
        return bool(self._writer.transport.get_write_buffer_size())

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message, unless it is gone."""
        if not self._writer.is_closing():
            self._writer.write(encode(kind, **fields))

    def signal(self, number: int) -> None:
        """Sends a signal, unless it is gone."""
        self._process.send_signal(number)

    async def _read(
        self,
        reader: asyncio.StreamReader,
        on_message: Callable[[WorkerProcess, Message], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        frames = Frames()
        try:
            while data := await reader.read(1 << 20):
                for message in frames.feed(data):
                    on_message(self, message)
        except (OSError, BadFrame):
            # Nobody can tell what it would say next.
            self.signal(signal.SIGKILL)
        await self._gone()
        self._writer.close()
        self.ended.set()
        on_end(self)

    async def _gone(self) -> None:
        """Waits for the process, which ends with its side of the socket pair or right behind it."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._process.wait()
