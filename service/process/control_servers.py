"""Builds the control servers in Python: HTTP and gRPC behind the native core, and HTTP of the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from service.access.access import Access
from service.access.tls import TlsFile
from service.configuration.settings import Settings
from service.control.engine import Engine
from service.core.forwarded import Forwarding
from service.grpc.grpcio_server import GrpcServer, Guard
from service.http.admin_app import create_admin_app
from service.http.console_routes import new_csrf
from service.http.http_app import create_http_app
from service.http.http_parts import HttpParts
from service.http.uploads import UploadsMiddleware
from service.http.uvicorn_server import HttpServer, LimitedConnection, OwnConnection, uvicorn_config
from service.process.bound_ports import BoundPort
from service.process.resources import max_admin_connections

# Largest request line with headers on the admin port, in bytes.
MAX_HEAD_BYTES = 64 << 10


class AdminServer:
    """The HTTP server of the admin routes. Concurrency: event loop only. Raises StartError if its port is in use."""

    def __init__(
        self,
        settings: Settings,
        tls: TlsFile | None,
        parts: HttpParts,
        reload_config: Callable[[Engine, str | None], Sequence[str]],
    ) -> None:
        # Number of bytes that bodies have counted as since the start.
        self.bytes_held_total = 0
        self._port = BoundPort(settings.admin_hosts, settings.admin_port, "--admin_port or --admin_host")
        self._listeners = self._port.listen()
        console = parts.console and replace(parts.console, is_admin=True, csrf=new_csrf())
        app = create_admin_app(replace(parts, console=console), partial(reload_config, parts.engine))
        # The outermost layer, so that it also bounds the bodies of callers that sign in.
        app.add_middleware(UploadsMiddleware, settings.bytes_in_flight, settings.stall_timeout_s, self._note_held)
        self._server = HttpServer(
            uvicorn_config(
                app,
                drain_timeout_s=settings.drain_timeout_s,
                http=partial(LimitedConnection, max_connections=max_admin_connections()),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ssl_context_factory=None if tls is None else lambda *_: tls.context(),
                lifespan="off",
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int | None:
        return self._port.number

    def _note_held(self, num_bytes: int) -> None:
        self.bytes_held_total += num_bytes

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=self._listeners))

    def stop_now(self) -> None:
        """Lets stop() wait for no request."""
        self._server.force_exit = True

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


_UPSTREAM_KEEP_ALIVE_S = 3600


def create_control_http_server(parts: HttpParts, forwarding: Forwarding, drain_timeout_s: float) -> HttpServer:
    return HttpServer(
        uvicorn_config(
            create_http_app(parts, forwarding),
            drain_timeout_s=drain_timeout_s,
            http=OwnConnection,
            lifespan="on",
            # The server keeps idle connections open for an hour, so that only the native core closes
            # them: if this server closed one, a forwarded request that is on its way could be lost.
            timeout_keep_alive=_UPSTREAM_KEEP_ALIVE_S,
        )
    )


def create_control_grpc_server(
    settings: Settings, engine: Engine, name: str, access: Access | None, forwarding: Forwarding
) -> GrpcServer:
    return GrpcServer(
        engine,
        abstract_name=name.removeprefix("\0"),
        max_message_bytes=settings.max_message_bytes,
        max_workers=settings.grpc_max_threads,
        as_content=settings.enable_serialization_as_tensor_content,
        guard=None if access is None else Guard(access.callers, access.engine, forwarding),
        forwarding=forwarding,
    )
