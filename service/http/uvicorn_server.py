"""Adapts uvicorn: it sets no signal handlers, and gives each request the names in the client's certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.access import state_with_names


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


class NamedClients(HttpToolsProtocol):
    """uvicorn's class of a connection, extended: its requests get the names in the client's certificate."""

    def connection_made(self, transport: Any) -> None:
        """Stores the names in the client's certificate in the connection's state when asyncio opens the connection."""
        super().connection_made(transport)
        self.app_state = state_with_names(self.app_state, transport)


def uvicorn_config(
    http_app: Any, *, drain_timeout_s: float, tls: Callable[[], ssl.SSLContext] | None = None, **more: Any
) -> uvicorn.Config:
    """Returns the uvicorn configuration with which an HTTP application is served.

    Args:
      tls: makes the TLS context; None: connections are plaintext.
      more: further settings of uvicorn.
    """
    return uvicorn.Config(
        http_app,
        loop="none",
        http=NamedClients,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        ssl_context_factory=None if tls is None else lambda config, default: tls(),
        **more,
    )
