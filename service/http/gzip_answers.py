"""Compresses large HTTP answers with gzip for clients that accept it.

Small answers are not compressed: a lookup of a few rows takes less time than compressing its answer.
"""

from __future__ import annotations

import asyncio
import gzip

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# gzip's fastest compression level, because numbers compress badly at every level.
_LEVEL = 1
_INLINE_BYTES = 64 * 1024


class GzipMiddleware:
    """ASGI middleware: compresses answers of at least min_bytes that the application sends in one piece.

    Concurrency: event loop only.
    """

    def __init__(self, app: ASGIApp, min_bytes: int) -> None:
        self._app = app
        self._min_bytes = min_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compresses the application's answer if the client accepts gzip and the answer is large."""
        if scope["type"] != "http" or not accepts_gzip(scope):
            await self._app(scope, receive, send)
            return
        start: Message = {}

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body = message.get("body", b"")
            if start and not message.get("more_body") and len(body) >= self._min_bytes and not _is_encoded(start):
                body = await _compressed(body)
                headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
                headers += [
                    (b"content-length", str(len(body)).encode()),
                    (b"content-encoding", b"gzip"),
                    (b"vary", b"Accept-Encoding"),
                ]
                start = {**start, "headers": headers}
                message = {**message, "body": body}
            if start:
                await send(start)
                start = {}
            await send(message)

        await self._app(scope, receive, send_compressed)


def accepts_gzip(scope: Scope) -> bool:
    """Says whether a request's Accept-Encoding names gzip, and not with weight 0, which excludes it."""
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for choice in value.lower().split(b","):
                coding, _, weight = choice.partition(b";")
                if coding.strip() == b"gzip":
                    return weight.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.", b"q=.")
    return False


def _is_encoded(start: Message) -> bool:
    """Says whether the application has encoded the answer itself: the answer has the header Content-Encoding."""
    return any(name.lower() == b"content-encoding" for name, _ in start["headers"])


async def _compressed(body: bytes) -> bytes:
    if len(body) <= _INLINE_BYTES:
        return gzip.compress(body, _LEVEL)
    return await asyncio.to_thread(gzip.compress, body, _LEVEL)
