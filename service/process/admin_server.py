"""Runs the HTTP server of the admin port, beside the servers of requests for models."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from service.access.access import Access
from service.engine.engine import Engine
from service.http.admin_app import create_admin_app
from service.http.console_routes import ConsoleSources
from service.http.statusz_route import add_statusz_route
from service.http.upsert_routes import add_upsert_routes
from service.http.uvicorn_server import HttpServer, uvicorn_config
from service.process.bound_ports import BoundPort

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
        statusz: tuple[Callable[[], Mapping[str, Any]], Callable[[Mapping[str, Any]], str]],
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
                lambda app: add_statusz_route(app, *statusz),
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
