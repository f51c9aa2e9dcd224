"""The gRPC server on HTTP/2 without a framework: one thread with an event loop, listeners, and how it stops."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop
from grpc_reflection.v1alpha import reflection

from service.core.engine import Engine
from service.transports.grpc import health
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.router import Router
from service.transports.grpc.served import HEALTH_NAMES, SERVICES, descriptor_pool

_BACKLOG = 2048


class H2Server:
    """TensorFlow Serving's gRPC API on one address, plaintext; see GrpcServer for the arguments.

    Args:
      listeners: sockets that listen already; the others are then not made.
      open_listener: listens in place of the event loop's own server, see workers.fair_listener.

    Concurrency: any thread; start and stop once.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        host: str,
        port: int,
        max_message_bytes: int,
        max_workers: int,
        socket_path: str = "",
        as_content: bool = False,
        listeners: Sequence[socket.socket] = (),
        open_listener: Callable[..., Any] | None = None,
    ) -> None:
        self._engine = engine
        self._host, self._port, self._socket_path = host, port, "" if listeners else socket_path
        self._listeners, self._open_listener = list(listeners), open_listener
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="grpc")
        self._health = health.Health()
        self._loop = uvloop.new_event_loop()
        self._connections: set[Connection] = set()
        self._idle = asyncio.Event()
        self._servers: list[Any] = []
        self._router = Router(
            engine,
            loop=self._loop,
            threads=self._threads,
            health=self._health,
            reflection=reflection.ReflectionServicer(SERVICES, descriptor_pool()),
            max_message_bytes=max_message_bytes,
            as_content=as_content,
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc-loop", daemon=True)

    def start(self) -> int:
        """Listens and serves; returns the port.

        Raises:
          OSError: an address can not be listened on.
        """
        if self._listeners:
            port: int = self._listeners[0].getsockname()[1]
        else:
            port = self._make_listeners()
        self.set_serving(self._engine.is_ready)
        self._thread.start()
        self._call(self._listen(self._listeners))
        return port

    def _make_listeners(self) -> int:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=_BACKLOG)
        port: int = listener.getsockname()[1]
        self._listeners = [listener]
        if self._socket_path:
            self._listeners.append(_unix_listener(self._socket_path))
        return port

    def set_serving(self, is_serving: bool) -> None:
        """Tells health checks whether the server, its services and each of its models can answer."""
        self._health.set_serving(self._engine, HEALTH_NAMES, is_serving)

    def stop(self, grace_s: float) -> None:
        """Refuses new requests at once, lets running ones end for up to grace_s, then cancels them. Blocks."""
        self._health.stop()
        self._call(self._drain(grace_s))
        self._health.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, listeners: list[socket.socket]) -> None:
        for listener in listeners:
            if self._open_listener is not None:
                self._servers.append(
                    self._open_listener(self._loop, self._connect, listener, lambda: len(self._connections))
                )
                continue
            make = self._loop.create_unix_server if listener.family == socket.AF_UNIX else self._loop.create_server
            server: Any = await make(self._connect, sock=listener, backlog=_BACKLOG)
            self._servers.append(server)

    def _connect(self) -> Connection:
        connection = Connection(self._router.open_call, self._lost)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._idle.set()

    async def _drain(self, grace_s: float) -> None:
        for server in self._servers:
            server.close()
        if self._socket_path:
            # uvloop leaves the file.
            _forget_socket(self._socket_path)
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    return listener


def _forget_socket(path: str, remove: Callable[[str], None] = os.unlink) -> None:
    try:
        remove(path)
    except FileNotFoundError:
        pass
