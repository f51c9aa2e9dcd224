"""What leaves a connection: frames in order, data as the client's windows and its socket take it.

Nothing is copied but small batches: an answer's frames point into its bytes until the socket has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from service.codecs.framed_answer import Framed
from service.transports.grpc.h2.frame_run import FrameRun
from service.transports.grpc.h2.frames import (
    ACK,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES,
    FRAME_SIZE_ERROR,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    MAX_FRAME_SIZE,
    PROTOCOL_ERROR,
    SETTINGS,
    ConnectionFault,
    StreamFault,
    data_frames,
    frame,
    read_settings,
)

if TYPE_CHECKING:
    from service.transports.grpc.h2.stream import Stream

# Batches up to this size are joined: one write of them costs less than a list of their parts.
_JOINED_BYTES = 32 << 10
# Data is handed to the socket in batches of about this size, so that streams take turns and a pause comes early.
_BATCH_BYTES = 1 << 20
# Of the frames around a whole answer, about: batches are not measured to the byte.
_AROUND_BYTES = 64
# A client that leaves more unread gets no more answers.
_MOST_HELD_BYTES = 128 << 20
# No frame is larger, whatever the client allows, so that others come through in between.
_MOST_FRAME_BYTES = 256 << 10


class Sender:
    """The output of one connection. Event loop only.

    window: what the client takes over all streams.
    stream_window: what it takes on a stream that is new.
    held_bytes: of answers that wait for the client. queued_bytes: of what waits for flush, about.
    frame_bytes: of the largest frame.
    """

    __slots__ = (
        "_transport",
        "_out",
        "queued_bytes",
        "_is_paused",
        "_waiting",
        "frame_bytes",
        "window",
        "stream_window",
        "held_bytes",
        "moved_bytes",
    )

    def __init__(self) -> None:
        self._transport: Any = None
        self._out: list[bytes | memoryview] = []
        self.queued_bytes = 0
        self._is_paused = False
        # Streams whose data waits, in the order of their turns.
        self._waiting: dict[int, Stream] = {}
        self.frame_bytes = FRAME_BYTES
        self.window = self.stream_window = FIRST_WINDOW
        self.held_bytes = 0
        # How much has been handed to the socket in all: whether a client takes anything shows in it.
        self.moved_bytes = 0

    def begin(self, transport: Any) -> None:
        """Says where frames go."""
        self._transport = transport
        # A write is tried at once, and a pause says that some of it waits in the transport.
        transport.set_write_buffer_limits(high=0)

    @property
    def has_room(self) -> bool:
        """Whether another answer may be kept for a client that has not read those before."""
        return self.held_bytes <= _MOST_HELD_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued has left for the kernel."""
        return not self._waiting and not self._out and not self._is_paused

    def queue(self, frames: bytes) -> None:
        """Queues frames that no window holds back."""
        self._out.append(frames)
        self.queued_bytes += len(frames)

    def takes_at_once(self, size: int) -> bool:
        """Says whether a new stream's data of that size could leave now, before nobody's."""
        return (
            size <= self.window
            and size <= self.stream_window
            and size <= _BATCH_BYTES
            and not self._waiting
            and not self._is_paused
            and self.queued_bytes < _BATCH_BYTES
        )

    def queue_whole(self, frames: Sequence[bytes | memoryview], num_counted: int) -> None:
        """Queues a whole answer that takes_at_once was asked about. num_counted: what of it the windows count."""
        self._out += frames
        # What is around it: enough to say when a batch is full.
        self.queued_bytes += num_counted + _AROUND_BYTES
        self.window -= num_counted

    def queue_frames(self, framed: Framed) -> None:
        """Queues a whole answer that was made as frames, and that takes_at_once was asked about."""
        data, cut = framed
        self._out.append(data)
        self.queued_bytes += len(data)
        self.window -= cut.num_counted

    def pump(self, stream: Stream) -> bool:
        """Queues what may leave now of a stream's data; says whether that was all of it."""
        queue = stream.queue
        while queue:
            most = min(stream.window, self.window, max(_BATCH_BYTES - self.queued_bytes, self.frame_bytes))
            if most <= 0 or self._is_paused or self.queued_bytes >= _BATCH_BYTES:
                self._waiting[stream.id] = stream
                return False
            data = queue.popleft()
            if isinstance(data, FrameRun):
                frames, size = data.take(stream.id, most)
                self._out += frames
                if not data.is_empty:
                    queue.appendleft(data)
            else:
                size = min(len(data), most)
                self._out += data_frames(stream.id, data[:size], self.frame_bytes)
                if size < len(data):
                    queue.appendleft(data[size:])
            self.queued_bytes += size
            self.window -= size
            stream.window -= size
            stream.held_bytes -= size
            self.held_bytes -= size
        self._waiting.pop(stream.id, None)
        return True

    def forget(self, stream: Stream) -> None:
        """Drops what waits of a stream that has ended."""
        self._waiting.pop(stream.id, None)
        self.held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.queue.clear()

    def flush(self) -> None:
        """Writes what is queued, and goes on with what waited, until the socket or the windows are full."""
        while self._out:
            out, self._out = self._out, []
            size, self.queued_bytes = self.queued_bytes, 0
            self.moved_bytes += size
            if self._transport.is_closing():
                return
            if len(out) == 1:
                self._transport.write(out[0])
            elif size <= _JOINED_BYTES:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
            if self._waiting and not self._is_paused and self.window > 0:
                self._take_turns()

    def paused(self) -> None:
        """The socket is full."""
        self._is_paused = True

    def resumed(self) -> None:
        """The socket has taken everything."""
        self._is_paused = False
        self._take_turns()

    def more_window(self, more: int) -> None:
        """The client takes more over all streams; raises ConnectionFault."""
        if not more:
            raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        self.window += more
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window is too large")
        self._take_turns()

    def more_stream_window(self, stream: Stream, more: int) -> None:
        """The client takes more on one stream; raises StreamFault."""
        if not more:
            raise StreamFault(PROTOCOL_ERROR)
        stream.window += more
        if stream.window > LARGEST_WINDOW:
            raise StreamFault(FLOW_CONTROL_ERROR)
        stream.resume()

    def take_settings(self, flags: int, payload: bytes, streams: Iterable[Stream]) -> None:
        """Does what a client's SETTINGS say, and acknowledges them; raises ConnectionFault."""
        if flags & ACK:
            if payload:
                raise ConnectionFault(FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS that is not empty")
            return
        # In front of what they let through: until then the client counts by what was before.
        self.queue(frame(SETTINGS, ACK, 0))
        for number, value in read_settings(payload):
            if number == INITIAL_WINDOW_SIZE:
                more, self.stream_window = value - self.stream_window, value
                for stream in list(streams):
                    stream.window += more
                    if stream.window > LARGEST_WINDOW:
                        raise ConnectionFault(FLOW_CONTROL_ERROR, "SETTINGS make a stream's window too large")
                    stream.resume()
            elif number == MAX_FRAME_SIZE:
                self.frame_bytes = min(value, _MOST_FRAME_BYTES)

    def _take_turns(self) -> None:
        for stream in list(self._waiting.values()):
            # To the end of the line, should something of it be left.
            self._waiting.pop(stream.id, None)
            stream.resume()
