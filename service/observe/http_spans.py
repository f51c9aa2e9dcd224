"""Makes an OpenTelemetry span for each HTTP request about a model that Python answers, and not the core."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.observe.spans import Spans, mark_failed

# Path prefixes of traced requests. Health checks and requests for metrics are not traced: they are frequent, and their
# spans would help nobody.
_TRACED = ("/v1/models", "/v2/models")


class HttpSpans:
    """ASGI middleware: opens a trace span for a request whose path is in _TRACED. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, tracing: Spans) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the ASGI application, within a trace span if the path begins with /v1/models or /v2/models."""
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
                        mark_failed(span, str(status))
                    # The span of an HTTP request is named by its route and not by its path, so that there are few
                    # names; the route is known only after the router ran.
                    if route := scope.get("route"):
                        span.update_name(f"{method} {route.path}")
                        span.set_attribute("http.route", route.path)
                await send(message)

            await self._app(scope, receive, send_marked)
