"""Builds the HTTP application of the admin port, whose routes change the list of models and rows of tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.callers import Callers
from service.engine.admission import Admission, Reservation
from service.engine.engine import Engine
from service.errors import MalformedPayload, PermissionDenied, RouteNotFound, ServiceError
from service.http.access import AccessMiddleware
from service.http.admin_routes import add_admin_routes
from service.http.body import read_body
from service.http.errors import error_response, service_error_response
from service.http.request_id import RequestIdMiddleware, RequestIds
from service.http.routing import add_route, raw_path
from service.http.security_headers import SecurityHeadersMiddleware

# Largest body, in bytes, of a request that replaces the list of models: enough for ten thousand models.
_MAX_CONFIG_BYTES = 4 << 20
METRICS_PATHS = ("/metrics",)


def create_admin_app(
    engine: Engine,
    *,
    metrics: Callable[[], tuple[bytes, str]],
    reload_config: Callable[[str | None], Sequence[str]],
    callers: Callers | None = None,
    add_routes: Sequence[Callable[[FastAPI], None]] = (),
) -> FastAPI:
    """Returns the ASGI application of the admin port.

    Args:
      metrics: as in create_http_app.
      reload_config: replaces the list of models by one in the text form of ModelServerConfig, or None: by the file's;
        returns the models' names when they answer; may block.
      callers: the callers that may send requests; None: everybody who can connect.
      add_routes: functions that add further admin routes.
    """
    app = FastAPI(redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)

    async def reload(request: Request) -> Response:
        """Replaces the list of models, as the gRPC method HandleReloadConfigRequest does; an error changes nothing."""
        if callers is not None:
            callers.require_everywhere("admin")
        # The body's bytes are not counted against the server's limits: an operator must be served while the server is
        # overloaded.
        body = await read_body(request, _MAX_CONFIG_BYTES, Reservation(Admission(), ""))
        try:
            text = body.decode() or None
        except UnicodeDecodeError as error:
            raise MalformedPayload("The body is not UTF-8 text.") from error
        names = await asyncio.to_thread(reload_config, text)
        return Response(orjson.dumps({"models": list(names)}), media_type="application/json")

    add_route(app, "/v1/config:reload", reload, "POST")
    add_admin_routes(app, engine, metrics, METRICS_PATHS)
    for add in add_routes:
        add(app)
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    if callers is not None:
        app.add_middleware(AccessMiddleware, callers=callers, metrics_paths=METRICS_PATHS)
    app.add_middleware(_NoPagesMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(RequestIdMiddleware, ids=RequestIds())
    return app


class _NoPagesMiddleware:
    """ASGI middleware: refuses requests of web pages, which a browser sends even to loopback addresses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A request with the header Origin is from a web page: browsers add this header to every POST.
        if scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"]):
            error = PermissionDenied("The admin routes answer no requests of web pages.")
            await service_error_response(error, scope["request_id"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return service_error_response(error, request.scope["request_id"])


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return service_error_response(RouteNotFound(f"Not found: {raw_path(request)}"), request.scope["request_id"])
    return error_response(error.status_code, f"{request.method} is not allowed here", error.headers)
