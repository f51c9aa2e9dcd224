"""Gives each HTTP request an id, answers HEAD like GET without the body, and answers unexpected errors with 500.

It is a plain ASGI layer, because BaseHTTPMiddleware would cost more than a lookup.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine import request_context
from service.http.errors import unexpected_error_response


class RequestIds:
    """The source of request ids: the client's X-Request-Id, else the trace id of its traceparent, else a new id.

    Concurrency: any thread.
    """

    def __init__(self) -> None:
        # New ids are a random prefix of this process and a counter: they are unique, and cheaper than a UUID per
        # request.
        self._prefix = secrets.token_hex(6).encode() + b"-"
        self._numbers = itertools.count(1)

    def enter(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Sets the request's context variables from its headers (names in lower case); returns the request's id."""
        own_id = parent = b""
        for name, value in headers:
            if name == b"x-request-id":
                own_id = own_id or request_context.sane_id(value)
            elif name == b"traceparent":
                parent = value
        own_id = own_id or request_context.trace_id(parent) or self.next()
        request_context.enter(own_id, parent)
        return own_id

    def next(self) -> bytes:
        """Makes a request id for an HTTP request that came without one."""
        return b"%b%x" % (self._prefix, next(self._numbers))


class RequestIdMiddleware:
    """ASGI middleware: gives each request an id, and adds the id to the answer's headers.

    Concurrency: event loop only.
    """

    def __init__(self, app: ASGIApp, ids: RequestIds) -> None:
        self._app = app
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application with the request's id set, and answers an unexpected error with status 500."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own_id = self._ids.enter(scope["headers"])
        request_id = own_id.decode()
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "request_id": request_id, "method": "GET" if is_head else scope["method"]}
        header = (b"x-request-id", own_id)
        is_started = False

        async def send_marked(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message["headers"] = [*message["headers"], header]
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except ClientDisconnect:
            # The client has disconnected, so no answer can be sent; this is no error of the server.
            return
        except Exception as error:
            if is_started:
                raise
            await unexpected_error_response(error, request_id)(scope, receive, send_marked)
