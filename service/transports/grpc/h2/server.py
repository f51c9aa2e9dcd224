"""The gRPC server on HTTP/2 without a framework: one thread with an event loop, listeners, and how it stops."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import uvloop
from grpc_reflection.v1alpha import reflection

from service.core.access import Grant
from service.core.engine import Engine
from service.transports.grpc import health
from service.transports.grpc.gate import Gate
from service.transports.grpc.guard import Guard, HealthFor
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.guarded_router import GuardedRouter, KnownConnection
from service.transports.grpc.h2.router import Router
from service.transports.grpc.paths import PredictDirectly
from service.transports.grpc.served import HEALTH_NAMES, SERVICES, descriptor_pool
from service.transports.turns import Turns

_BACKLOG = 2048
# Between two looks for clients that are stuck.
_CHECK_S = 5.0


class H2Server:
    """TensorFlow Serving's gRPC API on one address, plaintext unless open_listener secures
    connections; see GrpcServer for the other arguments.

    Args:
      host, port: where to listen; port 0 picks one.
      listeners: bound sockets to listen on in place of host, port and socket_path; closed at the end.
      open_listener: listens in place of the event loop's own server, see workers.fair_listener, tls_listener.

    Concurrency: any thread; start once.
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
        predict_directly: PredictDirectly | None = None,
        listeners: Sequence[socket.socket] = (),
        open_listener: Callable[..., Any] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._engine = engine
        self._host, self._port, self._socket_path = host, port, socket_path
        self._given = tuple(listeners)
        self._open_listener = open_listener
        self._threads = Gate(engine, max_workers)
        self._health = health.Health()
        self._loop = uvloop.new_event_loop()
        self._connections: set[Connection] = set()
        self._turns = Turns()
        self._idle = asyncio.Event()
        self._servers: list[Any] = []
        shown = reflection.ReflectionServicer(SERVICES, descriptor_pool())

        def router(engine: Engine, health: Any, predict_directly: PredictDirectly | None) -> Router:
            return Router(
                engine,
                loop=self._loop,
                threads=self._threads,
                health=health,
                reflection=shown,
                max_message_bytes=max_message_bytes,
                as_content=as_content,
                predict_directly=predict_directly,
            )

        self._router: Router | GuardedRouter
        if guard is None:
            self._router = router(engine, self._health, predict_directly)
        else:
            known = guard

            def of_caller(grant: Grant, health: HealthFor) -> Router:
                return router(known.engine_of(grant), health, known.directly_for(grant))

            self._router = GuardedRouter(guard, self._health, of_caller)
        self._stop_lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc-loop", daemon=True)

    def start(self) -> int:
        """Listens and serves; returns the port.

        Raises:
          OSError: an address can not be listened on.
        """
        listeners = list(self._given) or self._listeners()
        port: int = listeners[0].getsockname()[1]
        self.set_serving(self._engine.is_ready)
        self._thread.start()
        self._call(self._listen(listeners))
        self._loop.call_soon_threadsafe(self._check_connections)
        return port

    def set_serving(self, is_serving: bool) -> None:
        """Tells health checks whether the server, its services and each of its models can answer."""
        self._health.set_serving(self._engine, HEALTH_NAMES, is_serving)

    def stop(self, grace_s: float) -> None:
        """Refuses new requests at once, lets running ones end for up to grace_s, then cancels them. Blocks.

        Concurrency: any thread; a second call, beside the first, returns at once and only shortens its grace.
        """
        with self._stop_lock:
            is_first, self._is_stopped = not self._is_stopped, True
            if not is_first and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.call_later, grace_s, self._abort_all)
        if not is_first:
            return
        self._health.stop()
        if self._thread.is_alive():
            self._call(self._drain(grace_s))
        self._health.close()
        self._threads.close()
        with self._stop_lock:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            self._loop.close()

    def _listeners(self) -> list[socket.socket]:
        listeners = [_listener(self._host, self._port)]
        if self._socket_path:
            try:
                listeners.append(_unix_listener(self._socket_path))
            except OSError:
                listeners[0].close()
                raise
        return listeners

    async def _listen(self, listeners: list[socket.socket]) -> None:
        for listener in listeners:
            if self._open_listener is not None:
                opened = self._open_listener(self._loop, self._connect, listener, lambda: len(self._connections))
                self._servers.append(opened)
                continue
            make = self._loop.create_unix_server if listener.family == socket.AF_UNIX else self._loop.create_server
            server: Any = await make(self._connect, sock=listener, backlog=_BACKLOG)
            self._servers.append(server)

    def _connect(self) -> Connection:
        router = self._router
        connection: Connection
        if isinstance(router, GuardedRouter):
            connection = KnownConnection(router, self._lost, self._turns)
        else:
            connection = Connection(router, self._lost, self._turns)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._idle.set()

    def _check_connections(self) -> None:
        self._loop.call_later(_CHECK_S, self._check_connections)
        for connection in list(self._connections):
            connection.check()

    async def _drain(self, grace_s: float) -> None:
        for server in self._servers:
            server.close()
            if self._open_listener is not None:
                await server.wait_closed()
        if self._socket_path and not self._given:
            # uvloop leaves the file.
            _forget_socket(self._socket_path)
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                self._abort_all()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = f"[{host}]:{port}" if family is socket.AF_INET6 else f"{host}:{port}"
        raise OSError(f"gRPC can not listen on {where}: is it in use?") from error


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _forget_dead_socket(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise OSError(f"gRPC can not listen on unix:{path}: is it in use?") from error
    return listener


def _forget_dead_socket(path: str) -> None:
    """Removes the file that a server which was killed has left; one that still answers keeps its file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            _forget_socket(path)
        except FileNotFoundError:
            pass


def _forget_socket(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
