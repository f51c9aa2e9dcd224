"""Runs the native core on the public ports, and the control servers in Python behind it.

The core forwards requests that it does not answer over Unix sockets with abstract names: no file can be removed while
the server runs, none is left behind, and no folder needs to be writable. Permissions do not protect such a name, so the
control servers refuse all other clients: by the process id of the connection (HTTP), by the seal (gRPC).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.access.access import Access
from service.access.tls import Wires
from service.configuration.settings import Settings, StartError
from service.control.engine import Engine
from service.core.edge import Edge, Listeners, SampledRequests
from service.core.forwarded import Forwarding
from service.core.native_servable import RoutePublisher
from service.core.statistics import NativeStatistics
from service.http.http_parts import HttpParts
from service.observe.history import RecentRequests
from service.observe.metrics import Metrics
from service.process.bound_ports import BACKLOG, BoundPort, Ports, check_socket_path, grpc_port, http_port
from service.process.resources import FreedMemory, MemoryBound, in_own_thread, max_connections
from service.versions.threads import repeat
from service.wire.api import DEFAULT_MAX_TABLE_ROWS

if TYPE_CHECKING:
    from service.grpc.grpcio_server import GrpcServer
    from service.http.uvicorn_server import HttpServer

logger = logging.getLogger(__name__)

# Seconds between two reads of the native core's statistics; short, so that slow requests are logged soon.
_COLLECT_S = 1.0
_SILENT = "the native core can not reach the servers in Python: status, metrics and forwarded requests fail"
# Seconds between two reports of the server's health to the native core, which uses a report for ten seconds.
_HEALTH_S = 1.0


class NativeServers:
    """The native core, and the control servers behind it. Concurrency: event loop only, except set_serving.

    Args:
      on_end: called when the HTTP server behind the core has ended, for any reason.
      on_fault: called with the reason why the server can get no requests any more, and with "" when it can again.

    Raises:
      StartError: a setting can not be used.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        http_parts: HttpParts,
        *,
        routes: RoutePublisher,
        metrics: Metrics,
        recent: RecentRequests,
        tls: Wires,
        access: Access | None,
        on_end: Callable[[], None],
        on_fault: Callable[[str], None],
        on_damage: Callable[[str], None],
    ) -> None:
        self._on_fault, self._fault = on_fault, ""
        # Returns the number of bytes that other servers' requests have held since the start.
        self.held_beside: Callable[[], int] = lambda: 0
        self._settings = settings
        self._on_end = on_end
        self._bound: dict[str, BoundPort] = {}
        self._routes = routes
        self._metrics = metrics
        self._recent = recent
        self._sampled = SampledRequests(routes.recorders, engine.tracing, on_damage)
        metrics.dropped_spans = lambda: self._sampled.dropped_spans
        self._tls = tls
        self._callers = None if access is None else access.callers
        self._sampler = None if engine.tracing is None else engine.tracing.sampler
        self._seal = secrets.token_hex(16)
        name = f"embedding-server-{os.getpid()}-{secrets.token_hex(16)}"
        # A leading zero byte marks an abstract name.
        self._upstreams = {wire: f"\0{name}-{wire}" for wire in ("http", "grpc")}
        self._engine, self._access, self._http_parts = engine, access, http_parts
        # The control gRPC server, the control HTTP server and the task that runs it are None until complete().
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._edge: Edge | None = None
        self._statistics: NativeStatistics | None = None
        self._stop_collecting = threading.Event()
        self._health_lock = threading.Lock()
        self._telling: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Binds the HTTP and gRPC ports; connections are refused until open().

        Raises StartError if a port or the --grpc_socket_path is in use.
        """
        check_socket_path(self._settings.grpc_socket_path)
        self._bound = {"http": http_port(self._settings), "grpc": grpc_port(self._settings)}

    async def open(self) -> Ports:
        """Starts the native core on the public ports, and returns their numbers; raises StartError if one is in use.

        Until complete() has returned, requests that the core forwards are refused as unavailable.
        """
        ports = Ports(self._bound["http"].number, self._bound["grpc"].number)
        listeners: dict[str, list[socket.socket | Path]] = {
            wire: list(port.listen()) for wire, port in self._bound.items()
        }
        if self._settings.grpc_socket_path:
            listeners["grpc"].append(Path(self._settings.grpc_socket_path))
        self._edge = self._open_edge(listeners)
        collect = partial(self._collect, FreedMemory(), MemoryBound())
        repeat(collect, self._stop_collecting, _COLLECT_S, "native-statistics")
        self._sampled.start(self._edge)
        self._publish_health()
        return ports

    async def complete(self) -> None:
        # Garbage collection is off until the control servers are up: it would take a fifth of their imports' time and
        # find no garbage.
        gc.disable()
        try:
            await self._start_control()
            # gc.freeze() exempts the objects of FastAPI and grpcio, which live as long as the process: searching them
            # for garbage, each full garbage collection would stop all Python threads for some 100 ms.
            gc.freeze()
        finally:
            gc.enable()
        self._telling = asyncio.create_task(self._repeat_health())

    async def _start_control(self) -> None:
        # The control servers are imported only now, while the native core already serves: FastAPI and grpcio take as
        # long to import as all other modules that lookups need.
        from service.process.control_servers import create_control_grpc_server, create_control_http_server

        forwarding = Forwarding(self._seal)
        self._grpc = create_control_grpc_server(
            self._settings, self._engine, self._upstreams["grpc"], self._access, forwarding
        )
        try:
            self._grpc.start()
        except OSError as error:
            raise StartError(str(error)) from error
        self._http = create_control_http_server(self._http_parts, forwarding, self._settings.drain_timeout_s)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._upstreams["http"])
        listener.listen(BACKLOG)
        self._serving = asyncio.create_task(self._http.serve(sockets=[listener]))
        await self._http.begun.wait()
        self._serving.add_done_callback(lambda _: self._on_end())

    def _open_edge(self, listeners: Listeners) -> Edge:
        settings, metrics = self._settings, self._metrics
        edge = Edge(
            settings,
            self._routes,
            self._tls,
            listeners=listeners,
            upstreams=self._upstreams,
            max_connections=max_connections(settings.max_connections),
            max_table_rows=DEFAULT_MAX_TABLE_ROWS,
            callers=self._callers,
            sampler=self._sampler,
            seal=self._seal,
        )
        if (callers := self._callers) is not None:
            tell_core = callers.on_change

            def changed() -> None:
                tell_core()
                self._publish_health()

            callers.on_change = changed
        self._statistics = statistics = NativeStatistics(
            edge.server,
            slow=self._recent.was_slow,
            failed=self._recent.noted,
        )
        metrics.requests.core = statistics
        metrics.core = lambda: statistics.counts
        metrics.tls.handshakes_failed = lambda: statistics.counts.handshakes_failed
        return edge

    def _collect(self, freed: FreedMemory, bound: MemoryBound) -> None:
        # open() sets _edge and _statistics before it starts the thread that calls this.
        assert self._statistics is not None
        self._statistics.collect()
        self._note_silence()
        freed.look(self._statistics.connections, self._statistics.bytes_held_total + self.held_beside())
        bound.look()

    def _note_silence(self) -> None:
        """Makes the server not ready while the core can not reach the control servers, and logs each change."""
        assert self._edge is not None
        is_silent = self._edge.server.is_silent
        # A core that drains asks no more.
        if is_silent == bool(self._fault) or self._engine.is_draining:
            return
        self._fault = _SILENT if is_silent else ""
        if self._fault:
            logger.error("not ready", extra={"reason": self._fault})
        else:
            logger.warning("the servers in Python answer the core again")
        self._on_fault(self._fault)

    def set_serving(self, is_serving: bool) -> None:
        """Updates the statuses that health checks return, of the server and of its models. Concurrency: any thread."""
        # If the control gRPC server has not started yet, there are no statuses to update: when it starts, it reads
        # them from the engine.
        if (grpc := self._grpc) is not None:
            grpc.set_serving(is_serving)
            self._publish_health()

    def _publish_health(self) -> None:
        # The lock is held from reading the state of health until the native core has it, so that no older state
        # replaces a newer one.
        with self._health_lock:
            if self._edge is not None and self._grpc is not None:
                # If is_whole is True, the native core answers health checks itself: the server is ready and has no
                # problems. Otherwise the core forwards health checks to Python.
                is_whole = self._engine.is_ready and not self._engine.problems()
                self._edge.server.set_health(self._open_health(self._grpc.serving()), is_whole)

    def _open_health(self, serving: frozenset[str]) -> frozenset[str] | None:
        """Returns the services whose health is the same for every caller; None: --auth_config opens no health checks.

        With --auth_config, the health of a model depends on the caller, so Python answers its checks.
        """
        if self._callers is None:
            return serving
        # This import loads nothing: the gRPC server has started, so its modules are loaded already.
        from service.grpc.methods import HEALTH_NAMES

        return serving.intersection(HEALTH_NAMES) if self._callers.is_open("health") else None

    async def _repeat_health(self) -> None:
        # The event loop repeats the report of health: if it hangs, the last report expires after ten seconds, and the
        # native core forwards health checks to Python.
        while True:
            self._publish_health()
            if self._access is not None:
                self._access.sessions.hide_from_core()
            await asyncio.sleep(_HEALTH_S)

    async def stop(self) -> None:
        """Drains the native core, then stops the control servers, which answer forwarded requests until then."""
        timeout_s = self._settings.drain_timeout_s
        if self._telling is not None:
            self._telling.cancel()
        if self._edge is not None:
            if not await in_own_thread(partial(self._edge.server.drain, timeout_s), "drain"):
                logger.warning("requests in flight are cut", extra={"drain_timeout_s": timeout_s})
            self._stop_collecting.set()
            self._metrics.requests.detach_core()
            await in_own_thread(self._edge.close, "close")
            await in_own_thread(self._sampled.stop, "records")
        if self._http is not None and self._grpc is not None:
            self._http.should_exit = True
            stopping = in_own_thread(partial(self._grpc.stop, timeout_s), "grpc-stop")
            await asyncio.gather(self._serving or asyncio.sleep(0), stopping)
        for port in self._bound.values():
            port.close()

    def stop_now(self) -> None:
        if self._edge is not None:
            self._metrics.requests.detach_core()
            self._edge.close()
        if self._http is not None and self._grpc is not None:
            self._http.force_exit = True
            self._grpc.stop(0)

    def state(self) -> dict[str, Any]:
        if self._statistics is not None:
            self._statistics.collect()
        return {
            "kind": "native",
            "threads": self._settings.num_threads,
            **(self._statistics.read() if self._statistics is not None else {}),
        }
