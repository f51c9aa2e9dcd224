"""Cross-origin requests, as TensorFlow Serving allows them: all origins, or none.

Source: tensorflow_serving/model_servers/http_rest_api_util.cc AddCORSHeaders and http_server.cc (9d981c5).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CORS_HEADERS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
]


class CorsMiddleware:
    """Marks answers as readable by any origin, and answers what browsers ask first. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event stream."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *CORS_HEADERS]
            await send(message)

        if scope["method"] == "OPTIONS" and any(
            name == b"origin" and value.startswith((b"http://", b"https://")) for name, value in scope["headers"]
        ):
            headers = [(b"content-length", b"0"), (b"content-type", b"application/json")]
            await send_marked({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send_marked)
