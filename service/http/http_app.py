"""Builds the HTTP application of the public port, which serves requests for models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.core.forwarded import NO_FORWARDING, Forwarding
from service.errors import InvalidRequest, ModelNotFound, RouteNotFound, ServiceError, models_told
from service.http.access import AccessMiddleware
from service.http.console_routes import add_console_routes
from service.http.errors import CODE_HEADER, error_response, service_error_response
from service.http.http_parts import HttpParts
from service.http.middleware import (
    GZIP_LEVEL,
    GzipMiddleware,
    PathCaseMiddleware,
    RequestIdMiddleware,
    RequestIds,
    SecurityHeadersMiddleware,
)
from service.http.model_routes import (
    add_diff_route,
    add_hot_rows_route,
    add_lookup_routes,
    add_neighbor_routes,
    add_open_inference_routes,
    add_tfs_routes,
)
from service.http.operations_routes import add_admin_routes, add_docs_routes, add_statusz_route
from service.http.routing import CountingMiddleware, RequestCounts, malformed, meant_by, raw_path, takes
from service.http.table_view_routes import add_table_view_routes

# Most names of models that the error for an unknown model lists, as in native/src/edge/shared.rs.
_MAX_MODELS_TOLD = 100


def create_http_app(parts: HttpParts, forwarding: Forwarding = NO_FORWARDING) -> FastAPI:
    """Returns the ASGI application of the public HTTP port."""
    engine, callers = parts.engine, parts.callers

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        close_searches()
        close_table_views()

    app = FastAPI(
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # FastAPI's own telemetry is off, because it would read environment variables three times per request; this
        # server has metrics and traces of its own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        openapi_url=None,
    )
    add_lookup_routes(app, engine)
    close_searches = add_neighbor_routes(
        app, engine, max_body_bytes=parts.max_body_bytes, timeout_s=parts.rest_api_timeout_s
    )
    add_hot_rows_route(app, engine)
    # The route that compares versions is added before the status route, whose pattern also matches paths like
    # /versions/1:diff.
    add_diff_route(app, engine)
    add_tfs_routes(app, engine)
    close_table_views = add_table_view_routes(app, engine)
    add_open_inference_routes(app, engine)
    add_admin_routes(app, engine, parts.metrics, parts.metrics_paths)
    if parts.statusz is not None:
        add_statusz_route(app, parts.statusz)
    add_console_routes(app, parts)
    add_docs_routes(app, engine, strict_json=parts.strict_json, has_console=parts.console is not None)

    counts = RequestCounts(engine)

    async def on_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        counts.failed(request.scope, error)
        known = engine.models()[:_MAX_MODELS_TOLD] if isinstance(error, ModelNotFound) else None
        if known is not None and request.url.path.startswith("/v2/"):
            # Open Inference's clients show only the text; TensorFlow Serving's text is fixed.
            return _answer_error(request, ModelNotFound(f"{error.message}{models_told(engine.models())}"), None)
        return _answer_error(request, error, known)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _answer_unknown(request, error, counts)

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(CountingMiddleware, counts=counts)
    if parts.gzip_min_bytes:
        app.add_middleware(GzipMiddleware, minimum_size=parts.gzip_min_bytes, compresslevel=GZIP_LEVEL)
    if callers is not None:
        app.add_middleware(
            AccessMiddleware,
            callers=callers,
            metrics_paths=parts.metrics_paths,
            forwarding=forwarding,
            sessions=parts.sessions,
            refused=counts.failed,
        )
    app.add_middleware(SecurityHeadersMiddleware)
    if parts.spans is not None:
        app.add_middleware(parts.spans)
    app.add_middleware(RequestIdMiddleware, ids=RequestIds(), failed=counts.failed, forwarding=forwarding)
    app.add_middleware(PathCaseMiddleware)
    return app


def _answer_error(request: Request, error: ServiceError, known: list[str] | None) -> Response:
    # The error's traceback, context and cause are cleared to break a reference cycle between the error and FastAPI's
    # frames, which keep the request's body. Else each refusal would keep a megabyte or so until the garbage collector
    # runs.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return service_error_response(error, request.scope["request_id"], known)


def _answer_unknown(request: Request, error: HTTPException, counts: RequestCounts) -> Response:
    allowed = (error.headers or {}).get("Allow", "")
    if request.method == "OPTIONS" and error.status_code == 405:
        # OPTIONS with the header Origin is a browser's preflight request, and gets 200, as in TensorFlow Serving.
        status = 200 if "origin" in request.headers else 204
        return Response(status_code=status, headers={"Allow": ", ".join(filter(None, (allowed, "OPTIONS")))})
    # The route of a model's status is found for "/v1/models/m:train", too, with "m:train" as the name.
    if ":" in request.path_params.get("model", ""):
        allowed = ""
    refusal: ServiceError = RouteNotFound(f"Not found: {raw_path(request)}{meant_by(request)}")
    if request.url.path.startswith("/v1/"):
        refusal = malformed(request, allowed)
    elif allowed:
        refusal = InvalidRequest(
            f"{request.method} is not allowed here{takes(raw_path(request), request.method, allowed)}"
        )
    counts.failed(request.scope, refusal)
    if allowed and not request.url.path.startswith("/v1/"):
        headers = {**(error.headers or {}), CODE_HEADER: refusal.code}
        return error_response(error.status_code, refusal.message, headers)
    return service_error_response(refusal, request.scope["request_id"])
