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
        """Compresses the application's answer if the client accepts gzip and the answer is large.

        A large answer of JSON says that it depends on what the client accepts, also where it is plain.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        is_accepted = accepts_gzip(scope)

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body = message.get("body", b"")
            is_large = start and not message.get("more_body") and len(body) >= self._min_bytes
            if is_large and not _has(start, b"content-encoding"):
                headers = list(start["headers"])
                if is_accepted:
                    body = await _compressed(body)
                    headers = [(name, value) for name, value in headers if name != b"content-length"]
                    headers += [(b"content-length", str(len(body)).encode()), (b"content-encoding", b"gzip")]
                if is_accepted or _has(start, b"content-type", b"application/json"):
                    # Caches must know that another client would get this answer compressed.
                    headers.append((b"vary", b"Accept-Encoding"))
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


def _has(start: Message, name: bytes, value: bytes | None = None) -> bool:
    """Says whether an answer has a header, with this value or, for None, with any."""
    return any(found.lower() == name and value in (None, told) for found, told in start["headers"])


async def _compressed(body: bytes) -> bytes:
    if len(body) <= _INLINE_BYTES:
        return gzip.compress(body, _LEVEL)
    return await asyncio.to_thread(gzip.compress, body, _LEVEL)
