"""Builds the HTTP application of the admin port, whose routes change the list of models, labels, pins and rows of
tables.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from hmac import compare_digest

import orjson
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.sessions import CSRF_HEADER, Sessions
from service.control.engine import Engine
from service.errors import InvalidRequest, MalformedPayload, PermissionDenied, RouteNotFound, ServiceError
from service.http.access import AccessMiddleware, session_cookie
from service.http.body import read_body
from service.http.console_routes import SESSION_PATH, add_console_routes
from service.http.errors import CODE_HEADER, error_response, service_error_response
from service.http.http_parts import HttpParts
from service.http.middleware import RequestIdMiddleware, RequestIds, SecurityHeadersMiddleware
from service.http.operations_routes import add_admin_routes, add_statusz_route
from service.http.routing import (
    CountingMiddleware,
    RequestCounts,
    add_model_route,
    add_route,
    json_response,
    model_ref,
    raw_path,
)
from service.types import ModelRef
from service.versions.threads import Workers
from service.wire.json_body import decode_upsert, dump_plain, encode_tables

# Largest body, in bytes, of a request that replaces the list of models: enough for ten thousand models.
_MAX_CONFIG_BYTES = 4 << 20
METRICS_PATHS = ("/metrics",)


def create_admin_app(parts: HttpParts, reload_config: Callable[[str | None], Sequence[str]]) -> FastAPI:
    """Returns the ASGI application of the admin port, to which only the console's pages may send requests.

    Args:
      reload_config: replaces the list of models by one in the text form of ModelServerConfig, or None: by the file's;
        returns the models' names when they answer; may block.
    """
    engine, callers, sessions, console = parts.engine, parts.callers, parts.sessions, parts.console
    app = FastAPI(redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)

    async def reload(request: Request) -> Response:
        if callers is not None:
            callers.require_everywhere("admin")
        body = await read_body(request, _MAX_CONFIG_BYTES)
        try:
            text = body.decode() or None
        except UnicodeDecodeError as error:
            raise MalformedPayload("The body is not UTF-8 text.") from error
        names = await asyncio.to_thread(reload_config, text)
        return json_response({"models": list(names)})

    async def set_label(request: Request) -> Response:
        body = await read_body(request, _MAX_CONFIG_BYTES)
        ref, version = model_ref(request), _version_of(body)
        assert ref.label is not None  # The HTTP path of the route that sets a label always names the label.
        await asyncio.to_thread(copy_context().run, engine.set_label, ref.name, ref.label, version)
        return json_response({"label": ref.label, "version": version})

    async def pin(request: Request) -> Response:
        body = await read_body(request, _MAX_CONFIG_BYTES)
        ref, version = model_ref(request), _version_of(body)
        await asyncio.to_thread(copy_context().run, engine.pin, ref.name, version)
        return json_response({"model": ref.name, "version": version})

    async def tables(request: Request) -> Response:
        return Response(encode_tables(engine.tables(model_ref(request))), media_type="application/json")

    add_route(app, "/v1/config:reload", reload, "POST")
    add_route(app, "/v1/models/{model}/labels/{label}", set_label, "POST")
    add_route(app, "/v1/models/{model}:pin", pin, "POST")
    for where in ("", "/versions/{version}"):
        add_route(app, "/v1/models/{model}" + where + "/tables", tables, "GET")
    _add_upsert_routes(app, engine, parts.max_body_bytes)
    add_console_routes(app, parts)
    add_admin_routes(app, engine, parts.metrics, METRICS_PATHS)
    if parts.statusz is not None:
        add_statusz_route(app, parts.statusz)
    counts = RequestCounts(engine)

    async def on_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        counts.failed(request.scope, error)
        return service_error_response(error, request.scope["request_id"])

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            path = raw_path(request)
            is_data = path.startswith(("/v1/", "/v2/"))
            hint = "; this is the admin port (--admin_port), send requests to --rest_api_port" if is_data else ""
            return await on_service_error(request, RouteNotFound(f"Not found: {path}{hint}"))
        refusal = InvalidRequest(f"{request.method} is not allowed here")
        counts.failed(request.scope, refusal)
        headers = {**(error.headers or {}), CODE_HEADER: refusal.code}
        return error_response(error.status_code, refusal.message, headers)

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(CountingMiddleware, counts=counts)
    if callers is not None:
        app.add_middleware(
            AccessMiddleware,
            callers=callers,
            metrics_paths=METRICS_PATHS,
            sessions=sessions,
            refused=counts.failed,
        )
    csrf = "" if console is None else console.csrf
    app.add_middleware(_OwnPagesMiddleware, sessions=sessions, csrf=csrf, refused=counts.failed)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(RequestIdMiddleware, ids=RequestIds(), failed=counts.failed)
    return app


class _OwnPagesMiddleware:
    """Refuses requests of web pages but the console's: any page can make a browser send requests to loopback addresses.

    The console's own pages send a token that only they can read; without a session it is the listener's.
    """

    def __init__(
        self, app: ASGIApp, sessions: Sessions | None, csrf: str, refused: Callable[[Scope, ServiceError], None]
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._csrf = csrf
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The header Origin shows that a web page sent the request: browsers add it to every POST, even to a POST from
        # this server's own console.
        if scope["type"] == "http" and not self._may_send(scope):
            error = PermissionDenied("The admin routes answer no requests of web pages but the console's.")
            self._refused(scope, error)
            await service_error_response(error, scope["request_id"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_send(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None:
            return True
        if origin.partition("://")[2] != headers.get("host"):
            return False
        expected = self._csrf
        if self._sessions is not None:
            if scope["path"] == SESSION_PATH and scope["method"] == "POST":
                # A browser that signs in has no session yet, so it has no CSRF token to send. The route that opens a
                # session accepts only a JSON body, which a form of another site can not send.
                return True
            found = self._sessions.find(session_cookie(scope["headers"]))
            expected = "" if found is None else found[0].csrf
        return bool(expected) and compare_digest(headers.get(CSRF_HEADER, "").encode(), expected.encode())


def _version_of(body: bytes) -> int | None:
    try:
        version = orjson.loads(body)["version"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        version = ""
    if version is not None and (type(version) is not int or version < 0):
        raise MalformedPayload('Expected {"version": <number, or null for none>}.')
    return version


# Number of threads for upserts. Few are enough: they wait for the disk, and a journal has one writer at a time.
_NUM_THREADS = 4


def _add_upsert_routes(app: FastAPI, engine: Engine, max_body_bytes: int) -> None:
    threads = Workers(_NUM_THREADS, "http-upsert")
    # One thread parses at a time: more would be no faster, and requests for status would wait for each of them.
    parsing = threading.Lock()

    def change(ref: ModelRef, table: str, body: bytes) -> bytes:
        with parsing:
            parsed = decode_upsert(body)
        return dump_plain(engine.upsert(ref, table, parsed))

    async def upsert(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        work = (model_ref(request), request.path_params["table"], body)
        # An upsert has no deadline, because the client must learn whether the rows are on disk. copy_context() carries
        # the caller's rights (the grant) to the thread.
        answer = await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, change, *work)
        return Response(answer, media_type="application/json")

    add_model_route(app, "/tables/{table}:upsert", upsert, "POST")
