"""uvicorn as App needs it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from service.transports.http.connection_guard import ConnectionGuard

# Ticks of uvicorn's, a tenth of a second each, from one look at the connections to the next.
_SWEEP_TICKS = 5


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: when to stop is App's decision.

    Args:
      guard: cuts connections whose clients take too long.
      open_listener: listens in place of the event loop's own server, see workers.fair_listener, tls_listener.
    """

    def __init__(
        self, config: uvicorn.Config, guard: ConnectionGuard, open_listener: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(config)
        self._guard = guard
        self._open_listener = open_listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on sockets."""
        if self._open_listener is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for one in sockets or []:
            loop = asyncio.get_running_loop()
            self.servers.append(self._open_listener(loop, self._protocol, one, self._num_connections))

    async def on_tick(self, counter: int) -> bool:
        """Looks at the connections once in a while."""
        if counter % _SWEEP_TICKS == 0:
            connections: Any = self.server_state.connections
            self._guard.sweep(connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _num_connections(self) -> int:
        return len(self.server_state.connections)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


class UnixHttpServer(uvicorn.Server):
    """uvicorn behind the native core, which alone connects to its Unix socket and sets the limits.

    Args:
      config: with `uds`.

    begun: set once it listens, or has ended.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until should_exit."""
        try:
            await super().serve(sockets)
        finally:
            self.begun.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield
