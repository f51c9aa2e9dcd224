"""Counts the requests that an HTTP application answers: control requests, and all that it refuses.

Searches count themselves when they have run, and the native core counts what it answers.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.control.engine import Engine
from service.control.request_context import Call
from service.http.middleware import IS_ENCODED
from service.http.routing import RawRoute, in_the_core
from service.wire.api import HTTP_API

_MODEL = re.compile(r"/v[12]/models/([^/:]+)")
# Operations that are not counted here: searches, and the probes of orchestrators, most of which the core answers.
_UNCOUNTED = ("findNeighbors", "healthz", "readyz", "isLive", "isReady", "isModelReady")


class RequestCounts:
    """Counts the requests of one application. Concurrency: event loop only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def failed(self, scope: Scope, error: Exception) -> None:
        if (call := _call(scope)) is not None:
            self._engine.reject(error, call, model=named_model(scope))

    def answered(self, scope: Scope) -> None:
        """Counts a request that succeeded, unless its path is one of the core's, which the client asks again."""
        if (call := _call(scope)) is not None and call.is_control:
            self._engine.answered(call, model=named_model(scope))


class CountingMiddleware:
    """ASGI middleware: counts requests that succeed. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, counts: RequestCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._counts.answered(scope)
            await send(message)

        await self._app(scope, receive, send_counted)


def _call(scope: Scope) -> Call | None:
    route = scope.get("route")
    # A path may be one of a route with another HTTP method.
    if not isinstance(route, RawRoute) or route.method != scope["method"] or route.endpoint is in_the_core:
        return Call(HTTP_API)
    if route.operation in _UNCOUNTED:
        return None
    return Call(HTTP_API, f"{route.method} {route.path}", is_control=True)


def named_model(scope: Scope) -> str:
    """Returns the name of a model in a request's path, which the server need not know; "" if the path names none.

    >>> named_model({"path": "/v1/models/films:lookp"}), named_model({"path": "/v2/models/films/ready"})
    ('films', 'films')
    """
    found = _MODEL.match(scope["path"])
    name = found[1] if found else ""
    return unquote(name) if IS_ENCODED in scope else name
