"""Takes connections from a socket on which other workers listen too, so that each of them holds as many.

Whoever is ready takes what waits, so no connection waits for a worker that was killed, is starting, or is busy. Left to
itself that would give one worker most of them: an event loop takes all that is there when it wakes up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from service.transports.tls_listener import Handshakes
from service.workers.counts import ConnectionCounts, Wire

# How long a worker leaves a connection to those that hold fewer, and how often it looks meanwhile.
_YIELD_S = 0.001
_NUM_YIELDS = 5
_NOT_READY_S = 0.02
# Connections end without a word to this file.
_REFRESH_S = 0.1
# No descriptors are left; those that others free will do.
_EXHAUSTED_S = 0.5

Factory = Callable[[], asyncio.BaseProtocol]


class FairListener:
    """One wire's share of a listening socket. Concurrency: on its event loop only.

    Args:
      num_connections: how many this worker holds on this wire.
      is_ready: while it says no, another worker that is ready takes what comes.
      handshakes: secures connections; None: they are plaintext.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Factory,
        listener: socket.socket,
        num_connections: Callable[[], int],
        *,
        counts: ConnectionCounts,
        worker: int,
        wire: Wire,
        is_ready: Callable[[], bool],
        handshakes: Handshakes | None = None,
    ) -> None:
        self._loop = loop
        self._factory = factory
        self._listener = listener
        self._num_connections = num_connections
        self._counts = counts
        self._worker = worker
        self._wire: Wire = wire
        self._is_ready = is_ready
        self._handshakes = handshakes
        self._is_open = True
        self._num_yields = 0
        # Connections that were taken and have no protocol yet.
        self._opening: set[asyncio.Task[object]] = set()
        listener.setblocking(False)
        self._listen()
        self._refresh()

    def close(self) -> None:
        """Takes no more, and closes this worker's hold on the socket."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listener.fileno())
            self._counts.away(self._worker, self._wire)
            self._listener.close()
            if self._handshakes is not None:
                self._handshakes.close()

    async def wait_closed(self) -> None:
        """Waits for handshakes that closing has ended; who asks has waited for the connections."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener.fileno(), self._waiting)

    def _refresh(self) -> None:
        if self._is_open:
            self._tell()
            self._loop.call_later(_REFRESH_S, self._refresh)

    def _tell(self) -> None:
        if self._is_ready():
            self._counts.set(self._worker, self._wire, self._held)
        else:
            self._counts.away(self._worker, self._wire)

    @property
    def _held(self) -> int:
        return self._num_connections() + len(self._opening)

    def _waiting(self) -> None:
        """A connection waits: takes it, or leaves it to others for a moment."""
        least = self._counts.least_of_others(self._worker, self._wire)
        if least is not None and not self._is_ready():
            self._pause(_NOT_READY_S)
        elif least is not None and self._held > least and self._num_yields < _NUM_YIELDS:
            self._num_yields += 1
            self._pause(_YIELD_S)
        else:
            self._num_yields = 0
            self._take_one()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._listen)

    def _take_one(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another worker was faster, or the client left.
            return
        except OSError:
            self._pause(_EXHAUSTED_S)
            return
        connection.setblocking(False)
        opening = self._loop.create_task(self._open(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        self._tell()

    async def _open(self, connection: socket.socket) -> None:
        try:
            if self._handshakes is None:
                await self._loop.connect_accepted_socket(self._factory, connection)
            else:
                await self._handshakes.connect(self._factory, connection)
        except OSError:
            connection.close()
