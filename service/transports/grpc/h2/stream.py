"""One call's stream of a connection: what it is told, and where its answer goes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from service.codecs.framed_answer import Framed
from service.transports.grpc.h2.frame_run import FrameRun
from service.transports.grpc.h2.frames import END_HEADERS, END_STREAM, HEADERS, NO_ERROR, frame, rst_stream

if TYPE_CHECKING:
    from service.transports.grpc.h2.session import Session


class Call(Protocol):
    """What a connection tells one call. All on the connection's event loop."""

    def data(self, payload: bytes) -> None:
        """Some bytes of the request arrived."""

    def end(self) -> None:
        """The request is complete."""

    def cancelled(self) -> None:
        """The client gave up, or is gone; nothing that is sent will arrive."""

    def batch_done(self) -> None:
        """All that arrived together has been handed over; the call goes on."""

    def draining(self) -> None:
        """The server stops once all calls have ended."""

    def stalled(self) -> None:
        """No more of the request has come for long."""


class Stream:
    """Where one call's answer goes; methods do nothing after the stream has ended. Event loop only.

    window: what the client takes now; allowed: what it may still send.
    has_request: whether all of the request has come; num_received: its bytes so far, of num_expected where
      that is said; active_s: when some of it came.
    """

    __slots__ = (
        "_session",
        "id",
        "call",
        "queue",
        "held_bytes",
        "window",
        "allowed",
        "active_s",
        "num_received",
        "num_expected",
        "_trailers",
        "is_open",
        "has_request",
    )

    def __init__(self, session: Session, stream_id: int, *, window: int, allowed: int, now_s: float) -> None:
        self._session = session
        self.id = stream_id
        self.call: Call | None = None
        self.queue: deque[memoryview | FrameRun] = deque()
        self.held_bytes = 0
        self.window = window
        self.allowed = allowed
        self.active_s = now_s
        self.num_received = 0
        self.num_expected: int | None = None
        self._trailers: bytes | None = None
        self.is_open = True
        self.has_request = False

    def head(self, block: bytes) -> None:
        """Begins the answer with a header block."""
        if self.is_open:
            self._session.sender.queue(frame(HEADERS, END_HEADERS, self.id, block))

    def only_head(self, block: bytes) -> None:
        """Answers with headers alone."""
        if self.is_open:
            self._end(block)

    def write(self, data: bytes) -> None:
        """Sends data, as fast as the client takes it."""
        if self.is_open and data:
            self._add(memoryview(data), len(data))

    def write_frames(self, framed: Framed) -> None:
        """Begins the answer, and sends all its data, in frames that are made already."""
        data, cut = framed
        if self.is_open:
            self._session.sender.queue(data[: cut.ends[0]])
            self._add(FrameRun(framed), cut.num_counted)

    def trailers(self, block: bytes) -> None:
        """Ends the answer once all of it is sent."""
        if self.is_open:
            self._trailers = block
            if not self.queue:
                self._end(block)

    @property
    def is_flowing(self) -> bool:
        """Whether nothing waits for the client to read."""
        return not self.queue

    @property
    def has_room(self) -> bool:
        """Whether the client reads its answers, so that another may be kept for it."""
        return self._session.sender.has_room

    def flush(self) -> None:
        """Writes what was sent from outside the connection's own callbacks."""
        self._session.flush()

    def work_left(self, change: int) -> None:
        """Counts work that goes on although the stream has ended: +1, and -1 when it is done."""
        self._session.work_left(change)

    def resume(self) -> None:
        """Sends what the windows take now."""
        if self.is_open and self._session.sender.pump(self) and self._trailers is not None:
            self._end(self._trailers)

    def _add(self, data: memoryview | FrameRun, size: int) -> None:
        is_first = not self.queue
        self.queue.append(data)
        self.held_bytes += size
        self._session.sender.held_bytes += size
        if is_first:
            self.resume()

    def _end(self, block: bytes) -> None:
        frames = frame(HEADERS, END_HEADERS | END_STREAM, self.id, block)
        if not self.has_request:
            # The answer is complete; the rest of the request need not be sent.
            frames += rst_stream(self.id, NO_ERROR)
        self._session.sender.queue(frames)
        self._session.close(self)
