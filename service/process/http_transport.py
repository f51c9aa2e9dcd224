"""Builds the HTTP servers of the settings: for control requests behind the native core, and for the admin routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from service.engine.engine import Engine
from service.http.console_routes import ConsoleSources, new_csrf
from service.http.http_app import create_http_app
from service.http.uvicorn_server import HttpServer, uvicorn_config
from service.native.forwarded import Forwarding
from service.observe.statusz_page import page
from service.process.admin_server import AdminServer
from service.process.bound_ports import BoundPort
from service.process.http_parts import HttpParts

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
        statusz=(access.server_wide(parts.statusz) if access else parts.statusz, page),
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
        statusz=(parts.access.server_wide(parts.statusz) if parts.access else parts.statusz, page),
    )
