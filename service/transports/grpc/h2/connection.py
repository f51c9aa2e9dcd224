"""One client's connection: the socket's side of a session, and when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from service.transports.grpc.h2.frames import ConnectionFault
from service.transports.grpc.h2.route import Routes
from service.transports.grpc.h2.session import Session
from service.transports.turns import Turns

# A client must have said that it speaks HTTP/2 by then, and must go on with what it began.
_HANDSHAKE_S, _STALLED_S = 20.0, 60.0
# A client that leaves more of its answers unread is not read from either.
_UNREAD_BYTES = 64 << 20
_DRAIN_PING = b"draining"
# A client that does not answer the ping is not waited for.
_DRAIN_S = 1.0
# A peer that is gone without a word is noticed after this, with nothing to send.
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class Connection(asyncio.Protocol):
    """Hands bytes to a session, and writes what it answers.

    Args:
      routes: where heads lead.
      on_lost: told when the connection is gone.
      turns: of all connections.

    transport: what it speaks over, once it is made.

    Concurrency: event loop only.
    """

    def __init__(self, routes: Routes, on_lost: Callable[[Connection], None], turns: Turns) -> None:
        self._on_lost = on_lost
        self._turns = turns
        self._now = routes.now
        self.transport: Any = None
        self._session = Session(routes, self.flush, self._finish_soon)
        self._rest = b""
        self._is_in_batch = self._is_unread = self._is_closing = self._is_draining = False
        # When output and input last moved, and what they were then.
        self._sent_s = self._came_s = self._now()
        self._sent: tuple[int, int] = (0, 0)
        self._num_reads = self._num_reads_then = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport
        _probe(transport.get_extra_info("socket"))
        self._session.sender.begin(transport)
        self._session.greet()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._turns.came(self, data)

    def take(self, data: bytes) -> int:
        """See turns.Member."""
        if self._is_closing:
            return 0
        self._num_reads += 1
        if self._rest:
            data = self._rest + data
        self._is_in_batch = True
        try:
            used = self._session.take(data)
            self._rest = data[used:]
        except ConnectionFault as fault:
            self._fail(fault)
        finally:
            self._is_in_batch = False
        return self._session.coming_bytes

    def answer(self) -> None:
        """See turns.Member."""
        self._is_in_batch = True
        try:
            self._session.answer()
        finally:
            self._is_in_batch = False

    def eof_received(self) -> bool:
        """See asyncio.Protocol; a client that has said its last word is still answered, if that was a whole request."""
        self._turns.settle(self)
        streams = self._session.streams()
        self._session.cancel(stream for stream in streams if not stream.has_request)
        self._session.take_no_more()
        self.flush()
        return bool(streams)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.sender.paused()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.sender.resumed()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._is_closing = True
        self._session.close_all()
        self._on_lost(self)

    def flush(self) -> None:
        """Writes what is queued; callers outside data_received do so once they are done."""
        if self._is_in_batch:
            return
        sender = self._session.sender
        sender.flush()
        is_unread = sender.held_bytes > (_UNREAD_BYTES // 2 if self._is_unread else _UNREAD_BYTES)
        if is_unread is not self._is_unread:
            self._is_unread = is_unread
            if not self.transport.is_closing():
                (self.transport.pause_reading if is_unread else self.transport.resume_reading)()

    def check(self) -> None:
        """Ends a connection whose client is stuck, and calls that it has left half-sent; called every few seconds."""
        if self.transport is None:
            return
        now_s, session = self._now(), self._session
        sent = session.sender.moved_bytes, self.transport.get_write_buffer_size()
        if session.sender.is_idle or sent != self._sent:
            self._sent_s, self._sent = now_s, sent
        is_whole = session.has_settings and session.is_between_frames and not self._rest
        if is_whole or session.has_settings and self._num_reads != self._num_reads_then:
            self._came_s, self._num_reads_then = now_s, self._num_reads
        came_in_s = _STALLED_S if session.has_settings else _HANDSHAKE_S
        if now_s - self._sent_s > _STALLED_S or now_s - self._came_s > came_in_s:
            self.transport.abort()
        else:
            session.end_stalled(now_s - _STALLED_S)
            self.flush()

    def drain(self) -> None:
        """Tells the client to open no more streams, and closes once those that are open have ended."""
        if not self._is_draining and not self.transport.is_closing():
            self._is_draining = True
            self._session.begin_drain(_DRAIN_PING)
            asyncio.get_running_loop().call_later(_DRAIN_S, self._take_no_more)
            self.flush()

    def abort(self) -> None:
        """Closes at once."""
        self.transport.abort()

    def _take_no_more(self) -> None:
        self._turns.settle(self)
        self._session.take_no_more()
        self.flush()

    def _fail(self, fault: ConnectionFault) -> None:
        self._is_closing = True
        self._rest = b""
        self._session.fail(fault)
        self._finish_soon()

    def _finish_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        self.flush()
        self.transport.close()


def _probe(connected: socket.socket | None) -> None:
    """Has the kernel ask a silent peer whether it is still there."""
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            number = getattr(socket, name, None)
            if number is not None:
                connected.setsockopt(socket.IPPROTO_TCP, number, value)
