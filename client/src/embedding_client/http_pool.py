"""Sends blocking calls over a pool of HTTP connections, with the standard library alone."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import Any

from embedding_client.bearer import NO_TOKEN, Bearer
from embedding_client.calls import Call, Reply
from embedding_client.errors import DeadlineExceeded
from embedding_client.http_answers import checked, no_connection, request_headers
from embedding_client.targets import Target

_MAX_IDLE = 64


class HttpTransport:
    """A pool of HTTP connections; a request that finds none idle opens another one. Concurrency: any thread."""

    def __init__(self, target: Target, clock: Callable[[], float], bearer: Bearer = NO_TOKEN) -> None:
        self._target = target
        self._bearer = bearer
        self._clock = clock
        self._context: ssl.SSLContext | None = None if target.tls is None else target.tls.ssl_context()
        # The idle connections are a stack, because the server is least likely to have closed the connection that was
        # used last. append() and pop() of a deque need no lock.
        self._idle: deque[HTTPConnection] = deque()
        self._is_closed = False

    def send(self, call: Call[Any], timeout_s: float) -> Reply:
        """Sends a call over HTTP and returns the server's reply; raises EmbeddingError."""
        deadline_s = self._clock() + timeout_s
        while True:
            connection = self._pop_idle()
            is_reused = connection is not None
            if connection is None:
                connection = self._connection()
            try:
                status, header, body = self._exchange(connection, call, deadline_s)
            except TimeoutError as error:
                connection.close()
                text = f"No answer from {self._target} within {timeout_s:.3g} s."
                raise DeadlineExceeded("DEADLINE_EXCEEDED", text) from error
            except (OSError, HTTPException) as error:
                connection.close()
                if is_reused:
                    # The server may close an idle connection at any moment; if it closed this one, it has probably
                    # closed all idle ones, so all idle ones are dropped. Every method of the client only reads, so the
                    # request can be sent again.
                    self._drop_idle()
                    continue
                raise no_connection(self._target, error) from error
            except BaseException:
                connection.close()
                raise
            self._return_to_pool(connection)
            return checked(status, body, header)

    def close(self) -> None:
        """Closes idle connections now, and each busy connection when its request has ended."""
        self._is_closed = True
        self._drop_idle()

    def _exchange(
        self, connection: HTTPConnection, call: Call[Any], deadline_s: float
    ) -> tuple[int, Callable[[str], str | None], bytes]:
        remaining = partial(self._remaining, deadline_s)
        connection.timeout = remaining()
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(remaining())
        connection.response_class = partial(_response, remaining)  # type: ignore[assignment]
        headers = self._bearer.headers(request_headers(call))
        connection.request("GET" if call.body is None else "POST", call.path, call.body, headers)
        with connection.getresponse() as response:
            return response.status, response.getheader, response.read()

    def _remaining(self, deadline_s: float) -> float:
        remaining_s = deadline_s - self._clock()
        # A timeout of 0 is never set: settimeout(0) would make the socket non-blocking, so that its reads fail at once.
        if remaining_s <= 0:
            raise TimeoutError
        return remaining_s

    def _pop_idle(self) -> HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connection(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self._target.host, self._target.port)
        return HTTPSConnection(self._target.host, self._target.port, context=self._context)

    def _return_to_pool(self, connection: HTTPConnection) -> None:
        if self._is_closed or connection.sock is None or len(self._idle) >= _MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        while (connection := self._pop_idle()) is not None:
            connection.close()


def _response(remaining: Callable[[], float], sock: socket.socket, **options: Any) -> HTTPResponse:
    response = HTTPResponse(sock, **options)
    # A socket's timeout limits each receive only. Without _DeadlineReader, a server that sends a byte at a time could
    # exceed the deadline forever.
    response.fp = BufferedReader(_DeadlineReader(response.fp.detach(), sock, remaining))
    return response


class _DeadlineReader(RawIOBase):
    def __init__(self, raw: RawIOBase, sock: socket.socket, remaining: Callable[[], float]) -> None:
        self._raw = raw
        self._sock = sock
        self._remaining = remaining

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._remaining())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
