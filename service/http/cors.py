"""Lets web pages of other origins call the HTTP API (CORS): of all origins, as TensorFlow Serving does, or listed ones.

Source: tensorflow_serving/model_servers/http_rest_api_util.cc AddCORSHeaders and http_server.cc (9d981c5); Fetch
standard, section CORS protocol.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = (b"access-control-allow-methods", b"POST, GET")
# A page may send the id and the trace of its request, and read those of the answer. TensorFlow Serving allows only
# Content-Type, and exposes nothing.
_ALLOWED = b"Content-Type, X-Request-Id, traceparent, tracestate, baggage"
_EXPOSED = (b"access-control-expose-headers", b"X-Model-Version, X-Request-Id, X-Error-Code, Retry-After")
CORS_HEADERS = [
    (b"access-control-allow-origin", b"*"),
    _METHODS,
    (b"access-control-allow-headers", _ALLOWED),
    _EXPOSED,
]
# "Vary: Origin" keeps caches from answering a page of one origin with the answer for another.
_VARY = (b"vary", b"Origin")
Headers = list[tuple[bytes, bytes]]


class CorsMiddleware:
    """ASGI middleware: adds CORS headers to answers, and answers browsers' preflight requests.

    Concurrency: event loop only.

    Args:
      origins: allowed origins, such as "https://app.example"; None: all.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str] | None = None) -> None:
        self._app = app
        self._origins = None if origins is None else frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a browser's preflight request, or adds CORS headers to the application's answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        marks = self._marks(origin)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *marks]
            await send(message)

        if scope["method"] == "OPTIONS" and origin.startswith((b"http://", b"https://")):
            headers = [(b"content-length", b"0"), (b"content-type", b"application/json")]
            await send_marked({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send_marked)

    def _marks(self, origin: bytes) -> Headers:
        if self._origins is None:
            return CORS_HEADERS
        if origin not in self._origins:
            return [_VARY]
        # Pages of a listed origin may send the header Authorization. CORS_HEADERS, for all origins ("*"), does not
        # allow it.
        allowed = (b"access-control-allow-headers", b"Authorization, " + _ALLOWED)
        return [(b"access-control-allow-origin", origin), _METHODS, allowed, _EXPOSED, _VARY]
