"""Adapts uvicorn: limits pipelined requests and connections, reads client certificates, sets no signal handlers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.access import state_with_names

# The parser gets at most this many bytes at once, outside of bodies with a known length. The smallest request has about
# 20 bytes, and uvicorn takes some 60 us for the head of each, so one step takes the event loop at most 3 ms.
_PARSED_BYTES = 1024


class HttpServer(uvicorn.Server):
    """A uvicorn server without signal handlers, because process.app decides when to stop.

    begun: set when the server listens, or has ended.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves HTTP requests until the uvicorn server's attribute should_exit is set."""
        try:
            await super().serve(sockets)
        finally:
            self.begun.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Makes the uvicorn server listen on its sockets, and then sets the event `begun`."""
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing in place of uvicorn's own method, which would replace the process's signal handlers."""
        yield


class _Flow(FlowControl):
    """Flow control of one connection, which does not read while bytes of further requests wait to be parsed."""

    is_held = False

    def resume_reading(self) -> None:
        """Reads the socket again, unless bytes wait."""
        if not self.is_held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's class of a connection, extended by limits and by the names in the client's certificate.

    uvicorn parses all requests that have arrived, and reads on after each answer: a client that pipelines requests
    would block the event loop for as long as it likes, and fill the memory. This class parses the next requests only
    after the answer to the one before. Concurrency: event loop only.

    Args:
      max_head_bytes: largest request line and headers; None: no limit.
      max_connections: most open connections of the server; None: no limit. One more closes the connection that has been
        without a request for longest, of the client address with most connections.
      is_own_only: whether the connections of other processes are closed at once; the server listens on a Unix socket.
    """

    def __init__(
        self,
        *args: Any,
        max_head_bytes: int | None = None,
        max_connections: int | None = None,
        is_own_only: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._max_head_bytes, self._max_connections = max_head_bytes, max_connections
        self._is_own_only = is_own_only
        self._num_head_bytes = 0
        self._waiting = bytearray()
        self._num_body_bytes = 0
        self._is_last = False
        self.idle_since_s = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """Stores the names in the client's certificate, and closes one connection if there are too many."""
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        if self._is_own_only and _process_of(transport.get_extra_info("socket")) != os.getpid():
            self._is_last = True
            self.drop()
        self.app_state = state_with_names(self.app_state, transport)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            surplus_of(connection for connection in self.connections if isinstance(connection, HttpConnection)).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the bytes that wait to be parsed."""
        self._waiting.clear()
        super().connection_lost(exc)

    @property
    def is_running(self) -> bool:
        """Whether a request of this connection is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def address(self) -> str:
        """The IP address of the client; "" on a Unix socket."""
        return self.client[0] if self.client else ""

    def drop(self) -> None:
        """Closes the connection without an answer."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parses the bytes that have arrived, up to the end of the next request."""
        if not self._is_last:
            self._waiting += data
            self._parse()

    def on_headers_complete(self) -> None:
        """Starts the ASGI application for a request whose headers are complete; notes the request's Content-Length."""
        super().on_headers_complete()
        self._num_head_bytes = 0
        if self.parser.should_upgrade():
            # The parser skips the body of a CONNECT, or of a request with the header Upgrade, and would read its bytes
            # as further requests. So the connection ends with the answer to this request.
            self._is_last = True
            self.cycle.keep_alive = False
        lengths = [value for name, value in self.headers if name == b"content-length" and value.isdigit()]
        self._num_body_bytes = int(lengths[0]) if lengths else 0

    def on_body(self, body: bytes) -> None:
        """Gives bytes of the body to the request."""
        self._num_head_bytes = 0
        self._num_body_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the request, and forgets the length of its body: the parser skips the body of some requests."""
        self._num_body_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Starts the next request."""
        self.idle_since_s = self.loop.time()
        super().on_response_complete()
        self._parse()

    def _parse(self) -> None:
        while self._waiting and not self.transport.is_closing() and not self._has_next_request():
            size = max(_PARSED_BYTES, self._num_body_bytes)
            piece = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._num_head_bytes += len(piece)
            super().data_received(piece)
            if self._max_head_bytes is not None and self._num_head_bytes > self._max_head_bytes:
                self.drop()
            if self._is_last:
                self._waiting.clear()
        self.flow.is_held = bool(self._waiting)
        if self._waiting:
            self.flow.pause_reading()
        elif not self.pipeline and not self.is_running:
            self.flow.resume_reading()

    def _has_next_request(self) -> bool:
        return bool(self.pipeline) or (self.is_running and not self.cycle.more_body)


def _process_of(connection: socket.socket) -> int:
    """Returns the id of the process at the other end of a Unix socket. Source: unix(7), SO_PEERCRED."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def surplus_of(connections: Iterable[HttpConnection]) -> HttpConnection:
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


def uvicorn_config(
    http_app: Any,
    *,
    drain_timeout_s: float,
    tls: Callable[[], ssl.SSLContext] | None = None,
    max_head_bytes: int | None = None,
    max_connections: int | None = None,
    is_own_only: bool = False,
    **more: Any,
) -> uvicorn.Config:
    """Returns the uvicorn configuration with which an HTTP application is served.

    Args:
      tls: makes the TLS context; None: connections are plaintext.
      max_head_bytes, max_connections, is_own_only: as in HttpConnection.
      more: further settings of uvicorn.
    """
    connection: Any = partial(
        HttpConnection, max_head_bytes=max_head_bytes, max_connections=max_connections, is_own_only=is_own_only
    )
    return uvicorn.Config(
        http_app,
        loop="none",
        http=connection,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        ssl_context_factory=None if tls is None else lambda config, default: tls(),
        **more,
    )
