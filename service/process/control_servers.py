"""Builds the control servers in Python: HTTP and gRPC behind the native core, and HTTP of the admin port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from service.access.access import Access
from service.configuration.settings import Settings
from service.core.forwarded import Forwarding
from service.engine.engine import Engine
from service.grpc.grpcio_server import GrpcServer, Guard
from service.http.admin_app import add_upsert_routes, create_admin_app
from service.http.console_routes import ConsoleSources, new_csrf
from service.http.http_app import create_http_app
from service.http.operations_routes import add_statusz_route
from service.http.uvicorn_server import HttpServer, uvicorn_config
from service.process.bound_ports import BoundPort
from service.process.http_parts import HttpParts

Text = tuple[bytes, str]
# Most open connections of the admin port, of which each client address gets its share.
MAX_ADMIN_CONNECTIONS = 100


class AdminServer:
    """The HTTP server of the admin routes. Concurrency: event loop only.

    Args:
      port: bound already; its sockets listen from now on.
      render, reload_config, console: as in create_admin_app. statusz: as in create_http_app.
      tls: as in uvicorn_config; set if the models' HTTP port has TLS. max_head_bytes: as in HttpConnection.
    """

    def __init__(
        self,
        engine: Engine,
        access: Access | None,
        *,
        port: BoundPort,
        render: Callable[[], Text],
        reload_config: Callable[[Engine, str | None], Sequence[str]],
        tls: Callable[[], ssl.SSLContext] | None,
        max_head_bytes: int,
        max_body_bytes: int,
        drain_timeout_s: float,
        console: ConsoleSources,
        statusz: Callable[[], Mapping[str, Any]],
    ) -> None:
        seen = access.engine if access else engine
        app = create_admin_app(
            seen,
            metrics=access.metrics(render) if access else render,
            reload_config=partial(reload_config, seen),
            callers=access.callers if access else None,
            sessions=access.sessions if access else None,
            console=console,
            add_routes=[
                partial(add_upsert_routes, engine=seen, max_body_bytes=max_body_bytes),
                partial(add_statusz_route, read=statusz),
            ],
        )
        self._port, self._listeners = port, port.listen()
        self._server = HttpServer(
            uvicorn_config(
                app,
                drain_timeout_s=drain_timeout_s,
                tls=tls,
                max_head_bytes=max_head_bytes,
                max_connections=MAX_ADMIN_CONNECTIONS,
                lifespan="off",
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int | None:
        return self._port.number

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=self._listeners))

    async def stop(self) -> None:
        """Stops the admin server after it has answered the requests in flight."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


_UPSTREAM_KEEP_ALIVE_S = 3600


def create_control_http_server(parts: HttpParts, forwarding: Forwarding) -> HttpServer:
    """Returns the HTTP server in Python for the control requests that the native core forwards; raises StartError."""
    return HttpServer(
        uvicorn_config(
            _create_app(parts, forwarding),
            drain_timeout_s=parts.settings.drain_timeout_s,
            lifespan="on",
            is_own_only=True,
            # The server keeps idle connections open for an hour, so that only the native core closes
            # them: if this server closed one, a forwarded request that is on its way could be lost.
            timeout_keep_alive=_UPSTREAM_KEEP_ALIVE_S,
        )
    )


def _create_app(parts: HttpParts, forwarding: Forwarding) -> Any:
    settings, access = parts.settings, parts.access
    engine = access.engine if access else parts.engine
    return create_http_app(
        engine,
        metrics=access.metrics(parts.metrics.render) if access else parts.metrics.render,
        metrics_paths=parts.metrics_paths,
        max_body_bytes=settings.max_request_bytes,
        rest_api_timeout_s=settings.rest_api_timeout_s,
        gzip_min_bytes=settings.rest_api_gzip_min_bytes,
        has_cors=settings.rest_api_enable_cors_support,
        cors_origins=settings.cors_origins,
        strict_json=settings.rest_api_strict_json,
        spans=parts.spans,
        forwarding=forwarding,
        statusz=access.server_wide(parts.statusz) if access else parts.statusz,
        callers=access.callers if access else None,
        sessions=access.sessions if access else None,
        console=_console(parts),
    )


def _console(parts: HttpParts, *, is_admin: bool = False) -> ConsoleSources:
    return ConsoleSources(
        parts.version,
        parts.labels,
        parts.history,
        has_tls=parts.tls.http is not None,
        is_admin=is_admin,
        csrf=new_csrf() if is_admin else "",
        traffic=parts.access.server_wide(parts.traffic) if parts.access else parts.traffic,
        folders=parts.folders,
    )


def create_admin_server(parts: HttpParts, reload_config: Callable[[Engine, str | None], Sequence[str]]) -> AdminServer:
    """Returns the server of the admin routes, whose port is open already.

    Args:
      reload_config: as in create_admin_app.

    Raises:
      StartError: its port is in use.
    """
    settings = parts.settings
    return AdminServer(
        parts.engine,
        parts.access,
        port=BoundPort(settings.admin_hosts, settings.admin_port, "--admin_port or --admin_host"),
        render=parts.metrics.render,
        reload_config=reload_config,
        tls=None if parts.tls.http is None else parts.tls.http.context,
        max_head_bytes=settings.rest_api_max_head_bytes,
        max_body_bytes=settings.max_request_bytes,
        drain_timeout_s=settings.drain_timeout_s,
        console=_console(parts, is_admin=True),
        statusz=parts.access.server_wide(parts.statusz) if parts.access else parts.statusz,
    )


def create_control_grpc_server(
    settings: Settings, engine: Engine, name: str, access: Access | None, forwarding: Forwarding
) -> GrpcServer:
    """Returns a gRPC server on a Unix socket with an abstract name; it is not started yet.

    Args:
      access: the callers and their rights; None: everybody may call.
    """
    return GrpcServer(
        engine,
        abstract_name=name.removeprefix("\0"),
        max_message_bytes=settings.max_message_bytes,
        max_workers=settings.grpc_max_threads,
        as_content=settings.enable_serialization_as_tensor_content,
        guard=None if access is None else Guard(access.callers, access.engine.of),
        forwarding=forwarding,
    )
