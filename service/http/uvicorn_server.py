"""Adapts uvicorn: limits heads and connections, reads client certificates, sets no signal handlers."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Network, ip_address
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.access import state_with_names

# A head may be larger than its limit by this many bytes.
_PIECE_BYTES = 4096


class HttpServer(uvicorn.Server):
    """A uvicorn server without signal handlers, because process.app decides when to stop.

    begun: set when the server listens, or has ended.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.begun.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing in place of uvicorn's own method, which would replace the process's signal handlers."""
        yield


class OwnConnection(HttpToolsProtocol):
    """uvicorn's class of a connection, for a server on a Unix socket: closes the connections of other processes."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if _process_of(transport.get_extra_info("socket")) != os.getpid():
            transport.abort()


class LimitedConnection(H11Protocol):
    """uvicorn's class of a connection, for a port: limits heads and connections, and reads the client's certificate.

    h11 parses the next request of a connection only after the answer to the one before, and limits heads; with
    httptools, a client that pipelines requests would block the event loop for as long as it likes, and fill the memory.
    Concurrency: event loop only.

    Args:
      max_connections: most open connections of the server. One more closes the connection that has been without a
        request for longest, of the client address with most connections.
    """

    def __init__(self, *args: Any, max_connections: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self._max_connections = max_connections
        self.idle_since_s = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = state_with_names(self.app_state, transport)
        if len(self.connections) > self._max_connections:
            surplus_of(one for one in self.connections if isinstance(one, LimitedConnection)).transport.abort()

    def data_received(self, data: bytes) -> None:
        # h11 compares the size of a head with its limit only after bytes that do not complete the head.
        for begin in range(0, len(data), _PIECE_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + _PIECE_BYTES])

    def on_response_complete(self) -> None:
        self.idle_since_s = self.loop.time()
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        # uvicorn would log two warnings for each request to upgrade.
        return False

    @property
    def is_running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def address(self) -> str:
        return client_of(self.client[0]) if self.client else ""


def client_of(address: str) -> str:
    """Returns the client that the connections of an IP address count for, as in native/src/admission/fair_queue.rs.

    >>> client_of("2001:db8:1:2::5"), client_of("::ffff:10.0.0.5"), client_of("10.0.0.5")
    ('2001:db8:1:2::/64', '10.0.0.5', '10.0.0.5')
    """
    found = ip_address(address)
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found) >> 64 << 64, 64)))


def _process_of(connection: socket.socket) -> int:
    """Returns the id of the process at the other end of a Unix socket. Source: unix(7), SO_PEERCRED."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def surplus_of(connections: Iterable[LimitedConnection]) -> LimitedConnection:
    """Returns the connection to close if there are too many: the longest idle one of the address with most connections.

    If all connections of that address run requests, it is the newest of them.
    """
    everyone = list(connections)
    numbers = Counter(connection.address for connection in everyone)
    most = max(numbers.values())
    candidates = [connection for connection in everyone if numbers[connection.address] == most]
    idle = [connection for connection in candidates if not connection.is_running]
    # The newest connection has no request yet, so it is among the idle ones, and has been idle for the shortest time.
    if idle:
        return min(idle, key=lambda connection: connection.idle_since_s)
    return max(candidates, key=lambda connection: connection.idle_since_s)


def uvicorn_config(http_app: Any, *, drain_timeout_s: float, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        http_app,
        loop="none",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        **more,
    )
