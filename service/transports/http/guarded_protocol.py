"""uvicorn's HTTP/1.1 connection under limits: on heads, on time, on what is sent ahead and on what is not read.

uvicorn's own has none: a head may grow for ever, and a client that stops in the middle keeps its connection.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from httptools import HttpParserCallbackError
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from service.core.admission.admission import Admission
from service.transports.http.connection_guard import MAX_PIPELINED, ConnectionGuard, ConnectionLimits, Progress

_BUSY_BODY = b'{"error": "The server holds as many connections as it may. Try again later."}'
_BUSY = STATUS_LINE[503] + (
    b"content-type: application/json\r\nretry-after: 1\r\nx-error-code: UNAVAILABLE\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BUSY_BODY), _BUSY_BODY)
)
# How long a refused client gets to read why, and how many such there may be: a close at once would drop what was said.
_LINGER_S, _MAX_LINGERING = 1.0, 256
# What is read of a refused body beyond twice the limit, where that is small.
_DISCARDED_BYTES = 4 << 20


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Concurrency: event loop only.

    Subclasses say, by _head_done, _body_part and _body_done, how far a request has come, whoever answers it.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._guard = guard or ConnectionGuard(ConnectionLimits(), Admission())
        self._admission = self._guard.admission
        # When the head began that is not whole yet, or the wait for the first one.
        self._begun_s: float | None = None
        # When the last answer was sent without a task; then nothing is on its way from the client.
        self._idle_since_s: float | None = None
        # Whether a body is on its way, and how much of it came.
        self._is_body_due = False
        self._received = 0
        self._body = Progress()
        # Bytes that came in one go, whether a head was due before them, and how many came since the last part of a head
        # or body was whole.
        self._chunk_bytes = 0
        self._is_head_due = True
        self._idle_bytes = 0
        # What the client has not read of its answers.
        self._unread = Progress()
        self._unread_bytes = 0
        self._status = 400
        self._refused_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses a connection that is one too many."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._begun_s = self.loop.time()
        extra = len(self.connections) - self._guard.limits.connections
        if extra > 0:
            self._guard.on_drop("connections")
            self._refused_s = self._begun_s
            self.transport.write(_BUSY)
            if extra > _MAX_LINGERING:
                self.transport.close()
            else:
                self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Has data parsed, within the limits."""
        if self._refused_s is not None:
            return
        is_head, is_body, received = self._begun_s is not None, self._is_body_due, self._received
        self._chunk_bytes, self._is_head_due = len(data), is_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if (is_head and self._begun_s is not None) or (is_body and self._is_body_due and received == self._received):
            # A line that does not end; a body's trailers or what is written around its chunks.
            self._idle_bytes += len(data)
            if self._idle_bytes > self._guard.limits.head_bytes:
                self._refuse(431 if is_head else 400, "head size")
        else:
            self._idle_bytes = 0
        if self._begun_s is None and not self._is_body_due and self._idle_since_s is None and self._is_answered:
            # Empty lines between requests: uvicorn has just stopped its timer for them.
            self._begun_s = self.loop.time()

    def on_message_begin(self) -> None:
        """Starts a request."""
        self._begun_s = self.loop.time()
        self._idle_since_s = None
        self._idle_bytes = 0
        super().on_message_begin()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._cut("pipelining")
            # Ends the parsing of what is here already.
            raise ValueError("too many requests at once")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; trailers are nobody's."""
        if not self._is_body_due:
            super().on_header(name, value)

    def pause_writing(self) -> None:
        """Counts what the client does not read."""
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._admission.add_bytes("", self._unread_bytes)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stops counting it."""
        self._forget_unread()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what waits for this connection."""
        self._forget_unread()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers what can not be parsed, or is over a limit, and closes."""
        error = sys.exc_info()[1]
        if isinstance(error, HttpParserCallbackError) and isinstance(error.__context__, MemoryError):
            # The parser says so of whatever fails as it reads; this is not the client's fault.
            self._status = 503
        status = self._status
        if self.transport.is_closing():
            return
        if status == 400:
            super().send_400_response(msg)
            return
        text = STATUS_LINE[status].split(b" ", 2)[2].strip()
        head = b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
        self.transport.write(head % (STATUS_LINE[status], len(text), text))
        self.transport.close()

    def sweep(self, now_s: float) -> None:
        """Cuts the connection where its client takes too long; called once in a while."""
        limits = self._guard.limits
        if self._refused_s is not None:
            if now_s - self._refused_s > _LINGER_S:
                self.transport.abort()
            return
        unread = self.transport.get_write_buffer_size()
        if unread:
            # Also where the connection is closing: that waits for the client to read.
            if self._unread.is_stalled(unread, now_s, limits.stall_timeout_s):
                self._cut("slow reader")
            return
        self._unread.restart()
        if self.transport.is_closing():
            return
        if self._begun_s is not None and self._idle_since_s is None:
            if not self._is_answered:
                # Nobody waits for it yet.
                self._begun_s = now_s
            elif now_s - self._begun_s > limits.head_timeout_s:
                if self.scope is None and not self._idle_bytes:
                    # It never said anything: nothing is said to it.
                    self._cut("head timeout")
                else:
                    self._refuse(408, "head timeout")
        elif self._is_body_due and not self.flow.read_paused:
            if self._body.is_stalled(self._received, now_s, limits.stall_timeout_s):
                self._refuse(408, "body timeout")
        else:
            self._body.restart()

    def _head_done(self) -> None:
        """A head is whole; its body follows."""
        # Only a head in several pieces, or in a large one, can be too large.
        if self._is_head_due or self._chunk_bytes > self._guard.limits.head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._guard.limits.head_bytes:
                self._status = 431
                self._guard.on_drop("head size")
                raise ValueError("the head is too large")
        self._begun_s = None
        self._is_body_due = True
        self._received = 0
        self._body.restart()

    def _body_part(self, size: int) -> None:
        """Some of a body came."""
        self._received += size
        # It was refused at its limit; what comes behind that is thrown away for a while, so that its client can go on.
        if self._received > 2 * self._guard.limits.body_bytes + _DISCARDED_BYTES:
            self._cut("body size")

    def _body_done(self) -> None:
        """A body is whole."""
        self._is_body_due = False

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self, status: int, reason: str) -> None:
        """Answers with a status, unless an answer is on its way, and closes."""
        self._guard.on_drop(reason)
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        if self.pipeline or not (self._is_answered or self._is_body_due):
            self.transport.abort()
            return
        self._status = status
        self.send_400_response("Invalid HTTP request received.")

    def _cut(self, reason: str) -> None:
        self._guard.on_drop(reason)
        self.transport.abort()

    def _forget_unread(self) -> None:
        if self._unread_bytes:
            self._admission.give_back("", 0, self._unread_bytes)
            self._unread_bytes = 0
