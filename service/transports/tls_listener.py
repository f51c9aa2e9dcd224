"""Connections that are secured before the protocol that they are for hears of them.

An event loop's own TLS server keeps the certificate that it was started with, and lets as many handshakes wait as come.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# More are begun at the same time only at the cost of the oldest: a client needs milliseconds, an attacker has time.
_MAX_PENDING = 1000
# The event loop's own, 512 KiB, lets a client that reads slowly keep more than a plaintext one.
_WRITE_BUFFER_BYTES = 64 << 10
# A client that takes nothing for so long is gone: what it left unread is in buffers that protocols do not see.
_STUCK_S = 60.0
# Connections that are taken before others have their turn, and a pause where no descriptors are left.
_MAX_ACCEPTED = 32
_EXHAUSTED_S = 0.5

Factory = Callable[[], asyncio.BaseProtocol]


class Handshakes:
    """Secures the connections of one wire. Concurrency: its event loop only.

    Args:
      context: gives what a connection begins with.
      timeout_s: how long a handshake may take.
      on_failed: told why a connection was not secured.
      must_agree_on: the protocol that ALPN must have found; "": it need not.
      max_pending: handshakes at the same time.
      stuck_s: how long a client may take nothing of what is sent to it, where the kernel counts that.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        timeout_s: float,
        on_failed: Callable[[str], None],
        must_agree_on: str = "",
        max_pending: int = _MAX_PENDING,
        stuck_s: float = _STUCK_S,
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._must_agree_on = must_agree_on
        self._max_pending = max_pending
        self._stuck_ms = round(stuck_s * 1e3)
        # In the order in which they began.
        self._pending: dict[socket.socket, None] = {}
        self._is_open = True

    async def connect(self, factory: Factory, connection: socket.socket) -> None:
        """Returns when a connection is secured and its protocol made, or when it is closed.

        One through a Unix socket stays plaintext: it does not leave the machine.
        """
        loop = asyncio.get_running_loop()
        if connection.family == socket.AF_UNIX:
            await loop.connect_accepted_socket(factory, connection)
            return
        if len(self._pending) >= self._max_pending:
            _cut(next(iter(self._pending)))
        self._pending[connection] = None
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._stuck_ms)
        first = _First(self, factory)
        why = "the connection was closed"
        try:
            await loop.connect_accepted_socket(
                lambda: first,
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=self._timeout_s,
            )
        except OSError as error:
            # What a verification says of itself has more than its reason.
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error) or why
        finally:
            del self._pending[connection]
        # A connection that is cut is not always an error.
        if not first.is_secured:
            connection.close()
            self._on_failed(first.why_not or why)

    def close(self) -> None:
        """Ends what is not secured yet."""
        self._is_open = False
        for connection in self._pending:
            _cut(connection)

    def why_not(self, transport: Any) -> str:
        """Returns what keeps a connection from its protocol after a handshake; "": nothing."""
        if not self._is_open:
            return "the server is shutting down"
        agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if self._must_agree_on and agreed != self._must_agree_on:
            return f"the client did not offer {self._must_agree_on} (ALPN)"
        return ""


class _First(asyncio.Protocol):
    """The first protocol of a connection, until it is secured."""

    def __init__(self, handshakes: Handshakes, factory: Factory) -> None:
        self._handshakes = handshakes
        self._factory = factory
        self.is_secured = False
        self.why_not = ""

    def connection_made(self, transport: Any) -> None:
        """Makes the protocol that the connection is for."""
        self.why_not = self._handshakes.why_not(transport)
        if self.why_not:
            transport.close()
            return
        self.is_secured = True
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        # Not before: what a protocol sets for plaintext may mean another thing here. uvloop's TLS pauses at the limit
        # and not over it, so that 0 would pause after every write.
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)


def _cut(connection: socket.socket) -> None:
    # Its transport closes it.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class TlsListener:
    """Takes connections from a socket. Concurrency: on its event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, factory: Factory, listener: socket.socket, handshakes: Handshakes
    ) -> None:
        self._loop = loop
        self._factory = factory
        self._listener = listener
        self._handshakes = handshakes
        self._is_open = True
        self._opening: set[asyncio.Task[object]] = set()
        # A unix socket may come bound only.
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Takes no more, and closes the socket."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._handshakes.close()

    async def wait_closed(self) -> None:
        """Waits for the handshakes that closing has ended, and not for connections."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _listen(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener.fileno(), self._take)

    def _take(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_EXHAUSTED_S, self._listen)
                return
            connection.setblocking(False)
            opening = self._loop.create_task(self._handshakes.connect(self._factory, connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
