"""A span for each HTTP request that takes the general path."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.observe.spans import Spans

# Probes and scrapes are not traced: they say nothing of requests, and are most of them.
_TRACED = ("/v1/models", "/v2/")


class HttpSpans:
    """Spans requests for models. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, tracing: Spans) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event stream."""
        if scope["type"] != "http" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]}
        parent = self._tracing.remote_parent() or Context()
        with self._tracing.spanned(method, attributes, SpanKind.SERVER, parent) as span:

            async def send_marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_status(StatusCode.ERROR)
                    # Known once the router has found it; few names, whatever clients ask for.
                    if route := scope.get("route"):
                        span.update_name(f"{method} {route.path}")
                        span.set_attribute("http.route", route.path)
                await send(message)

            await self._app(scope, receive, send_marked)
