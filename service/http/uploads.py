"""Bounds the bodies of the admin port's requests: their bytes together, and the time in which each arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import DeadlineExceeded, Overloaded, PayloadTooLarge

# A body counts as its bytes up to this size, and as _PARSED times its bytes beyond, because it is JSON text, whose
# values take so much memory. The native core counts the bodies that it forwards in the same way.
_SMALL_BYTES, _PARSED = 64 << 10, 10
# Slowest pace at which a body may arrive, after a pause of stall_s.
_BYTES_PER_S = 1024


class UploadsMiddleware:
    """ASGI middleware: raises errors in place of a body's next part, and closes the connections of such requests.
    Concurrency: event loop only.

    DeadlineExceeded: the body does not arrive. Overloaded: the bodies of all requests that run count as more than
    max_bytes. PayloadTooLarge: this one does so alone.

    Args:
      on_held: called with a number of further bytes that a body counts as.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, stall_s: float, on_held: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        self._app = app
        self._max_bytes = self._left = max_bytes
        self._stall_s = stall_s
        self._on_held = on_held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        size = held = 0
        end_s = clock() + self._stall_s
        # The routes without a body do not receive it.
        headers = dict(scope.get("headers", ()))
        is_whole = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers

        async def receive_limited() -> Message:
            nonlocal size, held, end_s, is_whole
            if is_whole:
                # The next message tells that the client has closed the connection, which may take any time.
                return await receive()
            try:
                async with asyncio.timeout_at(end_s):
                    message = await receive()
            except TimeoutError:
                raise DeadlineExceeded(f"The body came too slowly: it has {size} bytes so far.") from None
            part = len(message.get("body", b""))
            size += part
            counted = size if size <= _SMALL_BYTES else size * _PARSED
            if counted > self._max_bytes:
                raise PayloadTooLarge(f"The body counts as more than {self._max_bytes} bytes (--max_bytes_in_flight).")
            if counted - held > self._left:
                raise Overloaded("The server is overloaded: requests of the admin port hold too many bytes.")
            self._left -= counted - held
            self._on_held(counted - held)
            held = counted
            end_s = min(clock() + self._stall_s, end_s + part / _BYTES_PER_S)
            is_whole = not message.get("more_body", False)
            return message

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_whole:
                # The rest of the body is not read, and a connection that stays open would wait for it for ever.
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive_limited, send_last)
        finally:
            self._left += held
