"""What a connection's client may send: its windows, and what half-sent requests may hold of the server's memory."""

from __future__ import annotations

from service.core.errors import Overloaded
from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.frames import ConnectionFault, StreamFault
from service.transports.grpc.h2.stream import Stream

# A stream's bytes that may be on their way, and the same for all streams of a connection.
STREAM_WINDOW = 4 << 20
_CONNECTION_WINDOW = 16 << 20
HEADER_BYTES = 16 << 10
# A request of fewer bytes is always let in: it will be complete at once.
_SMALL_BYTES = 64 << 10


class Budget:
    """Bytes of requests that have not come whole, over all connections. Event loop only.

    Args:
      max_bytes: more are not kept, but for requests that are small.
    """

    __slots__ = ("max_bytes", "used")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0


class Inbound:
    """The receiving side of one connection. Event loop only."""

    __slots__ = ("_budget", "_allowed", "_owed")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        # What the client may send now, over all streams, and what it has sent since it was last told to go on.
        self._allowed = _CONNECTION_WINDOW
        self._owed = 0

    @staticmethod
    def greeting(max_streams: int) -> bytes:
        """Returns a server's first frames."""
        values = (
            (f.MAX_CONCURRENT_STREAMS, max_streams),
            (f.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (f.MAX_FRAME_SIZE, f.FRAME_BYTES),
            (f.MAX_HEADER_LIST_SIZE, HEADER_BYTES),
        )
        return f.settings(values) + f.window_update(0, _CONNECTION_WINDOW - f.FIRST_WINDOW)

    def took(self, size: int) -> None:
        """Counts bytes of DATA against the connection's window; raises ConnectionFault."""
        self._allowed -= size
        self._owed += size
        if self._allowed < 0:
            raise ConnectionFault(f.FLOW_CONTROL_ERROR, "more data came than the connection's window allows")

    def credit(self) -> bytes:
        """Returns the connection's WINDOW_UPDATE, once it is worth one."""
        if self._owed < _CONNECTION_WINDOW // 2:
            return b""
        owed, self._owed = self._owed, 0
        self._allowed += owed
        return f.window_update(0, owed)

    def data(self, stream: Stream, num_framed: int, num_bytes: int) -> bytes:
        """Counts a frame of a stream; returns the stream's WINDOW_UPDATE, once it is worth one.

        Args:
          num_framed: with padding, as windows count it.
          num_bytes: of the request.

        Raises:
          StreamFault: more than was allowed, or than the request said.
          Overloaded: half-sent requests hold all that they may.
        """
        stream.allowed -= num_framed
        stream.num_received += num_bytes
        self._budget.used += num_bytes
        if stream.allowed < 0:
            raise StreamFault(f.FLOW_CONTROL_ERROR)
        if stream.num_expected is not None and stream.num_received > stream.num_expected:
            raise StreamFault(f.PROTOCOL_ERROR)
        if self._budget.used > self._budget.max_bytes and stream.num_received > _SMALL_BYTES:
            raise Overloaded(
                "The server holds too many bytes of requests that have not arrived whole. Try again later."
            )
        if stream.allowed >= STREAM_WINDOW // 2:
            return b""
        more = STREAM_WINDOW - stream.allowed
        stream.allowed = STREAM_WINDOW
        return f.window_update(stream.id, more)

    def complete(self, stream: Stream) -> None:
        """All of a stream's request has come; raises StreamFault where that is less than it said."""
        self.forget(stream)
        stream.has_request = True
        if stream.num_expected is not None and stream.num_received != stream.num_expected:
            raise StreamFault(f.PROTOCOL_ERROR)

    def forget(self, stream: Stream) -> None:
        """A stream has ended, maybe before its request was whole."""
        if not stream.has_request:
            self._budget.used -= stream.num_received
