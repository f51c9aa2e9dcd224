"""Builds the HTTP servers that the settings ask for: the one of the models, and the admin routes' own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from service.access import Access
from service.admin_server import AdminServer
from service.configuration.monitoring_config import metrics_paths, read_monitoring_config
from service.configuration.settings import Settings
from service.core.engine import Engine
from service.core.errors import ServiceError
from service.direct.http_bodies import DirectHttp
from service.http_server import HttpServer, UnixHttpServer
from service.metrics.metrics import Metrics
from service.process_limits import max_connections
from service.start_error import StartError
from service.statusz.page import page
from service.tls.wires import Wires, opener
from service.transports.http.calls import API
from service.transports.http.connection_guard import ConnectionGuard, ConnectionLimits
from service.transports.http.guarded_hot import hot_protocol
from service.transports.http.http_app import create_http_app
from service.workers.crew import Crew

_UPSTREAM_KEEP_ALIVE_S = 3600


@dataclass(frozen=True, slots=True)
class HttpParts:
    """What the HTTP servers are joined to.

    crew: the other workers that this process is one of, with the sockets that they share.
    access: who may do what; None: everybody may.
    statusz: gathers what the status page shows. spans: wraps the application in what traces its requests.
    """

    settings: Settings
    engine: Engine
    metrics: Metrics
    crew: Crew | None
    access: Access | None
    tls: Wires
    statusz: Callable[[], Mapping[str, Any]]
    spans: Callable[[Any], Any] | None

    def render(self) -> tuple[bytes, str]:
        """Returns the metrics of all workers."""
        return self.crew.render() if self.crew else self.metrics.render()

    def connection_guard(self) -> ConnectionGuard:
        """Returns what cuts connections of a server that take too much."""
        settings = self.settings
        return ConnectionGuard(
            ConnectionLimits(
                connections=max_connections(settings.max_connections),
                head_bytes=settings.rest_api_max_head_bytes,
                body_bytes=settings.max_request_bytes,
                head_timeout_s=settings.rest_api_head_timeout_s,
                stall_timeout_s=settings.rest_api_stall_timeout_s,
            ),
            self.engine.admission,
            self.metrics.admission.connection_dropped,
        )


def create_http_server(parts: HttpParts) -> HttpServer:
    """Returns the models' server; raises StartError."""
    http_app = _create_app(parts)
    guard = parts.connection_guard()
    protocol: Any = hot_protocol(http_app.state.hot_answers, guard)
    config = _uvicorn_config(parts.settings, http_app, http=protocol)
    return HttpServer(config, guard, opener("http", parts.tls.http_handshakes(), parts.crew))


def create_reference_http_server(parts: HttpParts, socket_path: Path) -> UnixHttpServer:
    """Returns the models' server behind the native core, on a Unix socket; raises StartError."""
    config = _uvicorn_config(parts.settings, _create_app(parts), http="httptools", uds=str(socket_path))
    # The core closes connections that it does not need; this side must not do so while a request is on its way.
    config.timeout_keep_alive = _UPSTREAM_KEEP_ALIVE_S
    return UnixHttpServer(config)


def _create_app(parts: HttpParts) -> Any:
    settings, access = parts.settings, parts.access
    engine = access.engine if access else parts.engine
    return create_http_app(
        engine,
        metrics=access.metrics(parts.render) if access else parts.render,
        metrics_paths=_metrics_paths(settings.monitoring_config_file),
        max_body_bytes=settings.max_request_bytes,
        rest_api_timeout_s=settings.rest_api_timeout_s,
        graph_threads=settings.http_graph_threads,
        gzip_min_bytes=settings.rest_api_gzip_min_bytes,
        has_cors=settings.rest_api_enable_cors_support,
        cors_origins=settings.cors_origins,
        strict_json=settings.rest_api_strict_json,
        spans=parts.spans,
        statusz=(access.server_wide(parts.statusz) if access else parts.statusz, page),
        directly=DirectHttp(engine, API, strict_json=settings.rest_api_strict_json),
        callers=access.callers if access else None,
    )


def _uvicorn_config(settings: Settings, http_app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        http_app,
        loop="none",
        timeout_keep_alive=settings.rest_api_keep_alive_s,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        **more,
    )


def create_admin_server(
    parts: HttpParts, reload_config: Callable[[Engine, str | None], Sequence[str]]
) -> AdminServer | None:
    """Returns the admin routes' server, which listens already; None where there is none.

    Args:
      reload_config: as in create_admin_app.

    Raises:
      StartError: its port is in use.
    """
    settings, crew = parts.settings, parts.crew
    if settings.admin_port < 0:
        return None
    shared = crew.admin_listener if crew else None
    return AdminServer(
        parts.engine,
        parts.access,
        listener=shared or listen(settings.admin_host, settings.admin_port, "--admin_port or --admin_host"),
        render=parts.render,
        reload_config=reload_config,
        guard=parts.connection_guard(),
        open_listener=opener("admin", parts.tls.http_handshakes(), crew),
        max_body_bytes=settings.max_request_bytes,
        drain_timeout_s=settings.drain_timeout_s,
    )


def listen(host: str, port: int, flags: str = "--rest_api_port or --host", wire: str = "HTTP") -> socket.socket:
    """Returns a socket that listens; raises StartError, which names the flags to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port} for {wire}: {error.strerror}. Choose another with {flags}."
        ) from error


def _metrics_paths(file: str) -> tuple[str, ...]:
    try:
        return metrics_paths(read_monitoring_config(Path(file)) if file else None)
    except ServiceError as error:
        raise StartError(f"--monitoring_config_file={file}: {error.message}") from error
