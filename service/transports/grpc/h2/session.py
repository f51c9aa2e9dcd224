"""The state of one HTTP/2 connection: frames to streams and calls, without a socket.

Most requests are whole frames in one read: headers that were seen before, and a message that is answered in
microseconds. They are answered without a stream or a call, and their lookups are done together with those that came
for other connections; all else goes the general way.

Source: RFC 9113.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.core.errors import ServiceError
from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.frames import ConnectionFault, StreamFault
from service.transports.grpc.h2.header_parts import HeaderParts
from service.transports.grpc.h2.inbound import STREAM_WINDOW, Inbound
from service.transports.grpc.h2.known_routes import KnownRoutes
from service.transports.grpc.h2.messages import PREFIX_BYTES, prefix
from service.transports.grpc.h2.quick_answers import QuickAnswers
from service.transports.grpc.h2.route import Route, Routes
from service.transports.grpc.h2.sender import Sender
from service.transports.grpc.h2.stream import Stream
from service.transports.grpc.h2.whole_requests import whole_message

MAX_STREAMS = 1000


class Session:
    """Takes what a client sends, and queues what it is answered. Event loop only.

    Args:
      routes: where heads lead.
      flush: writes what is queued; called from outside take() alone.
      on_drained: told when no stream is left of a session that takes no more.

    has_settings: the client has shown that it speaks HTTP/2.
    """

    def __init__(self, routes: Routes, flush: Callable[[], None], on_drained: Callable[[], None]) -> None:
        self._routes = routes
        self.flush = flush
        self._on_drained = on_drained
        self.sender = Sender()
        self._quick = QuickAnswers(routes, self.sender)
        self._most_quick_bytes = routes.most_quick_bytes
        self._inbound = Inbound(routes.budget)
        self._heads = KnownRoutes(routes)
        self._parts: HeaderParts | None = None
        self._streams: dict[int, Stream] = {}
        self._opened: list[Stream] = []
        # Work that goes on although its streams have ended.
        self._num_left = 0
        self._last_id = 0
        self._has_preface = self.has_settings = self._takes_no_more = False
        self._drain_ping = b""

    # What the connection asks for.

    def take(self, data: bytes) -> int:
        """Takes the whole frames of data; returns how many bytes they are. Raises ConnectionFault."""
        at, end = 0, len(data)
        if not self._has_preface:
            at = self._skip_preface(data)
            if not at:
                return 0
        known, read_head = self._heads.known(), f.read_head
        while end - at >= f.HEAD_BYTES:
            high, low, kind, flags, stream_id = read_head(data, at)
            start = at + f.HEAD_BYTES
            if high or low > f.FRAME_BYTES:
                raise ConnectionFault(f.FRAME_SIZE_ERROR, "a frame is larger than SETTINGS_MAX_FRAME_SIZE")
            after = start + low
            if after > end:
                break
            if kind == f.HEADERS and flags == f.END_HEADERS and self._parts is None:
                route = known.get(data[start:after])
                if route is not None and route.quickly is not None:
                    stop = self._begin_quickly(route, data, after, stream_id)
                    if stop:
                        at = stop
                        continue
            # In their order: this may be about one that was begun.
            self._quick.send(self)
            self._take(kind, flags, stream_id & f.LARGEST_WINDOW, data[start:after])
            at = after
        return at

    @property
    def coming_bytes(self) -> int:
        """How much of answers waits for the socket, or will once it is answered; about."""
        return self.sender.queued_bytes + self._quick.num_bytes

    def answer(self) -> None:
        """Answers what was begun; all that came in one read has been taken."""
        self._quick.send(self)
        credit = self._inbound.credit()
        if credit:
            self.sender.queue(credit)
        if self._opened:
            opened, self._opened = self._opened, []
            for stream in opened:
                if stream.call is not None:
                    stream.call.batch_done()

    @property
    def is_between_frames(self) -> bool:
        """Whether no header block is half-read."""
        return self._parts is None

    def streams(self) -> Iterable[Stream]:
        """Returns the streams that are open now."""
        return list(self._streams.values())

    def cancel(self, streams: Iterable[Stream]) -> None:
        """Ends streams whose client is gone."""
        for stream in streams:
            self._cancelled(stream)

    def end_stalled(self, before_s: float) -> None:
        """Ends calls of whose requests nothing has come since then."""
        for stream in self.streams():
            if not stream.has_request and stream.active_s < before_s and stream.call is not None:
                stream.call.stalled()

    def close_all(self) -> None:
        """The connection is gone."""
        self.cancel(self.streams())
        # It points back at the connection: without this both would stay until a full collection.
        self.flush = self._on_drained = _nothing

    def greet(self) -> None:
        """Queues what a server says first."""
        self.sender.queue(Inbound.greeting(MAX_STREAMS))

    def begin_drain(self, ping: bytes) -> None:
        """Tells the client to open no more streams; those on their way are still taken until the ping comes back."""
        self._drain_ping = ping
        for stream in self.streams():
            if stream.call is not None:
                stream.call.draining()
        self.sender.queue(f.goaway(f.LARGEST_WINDOW, f.NO_ERROR) + f.frame(f.PING, 0, 0, ping))

    def take_no_more(self) -> None:
        """Names the last stream that is served; on_drained is told once all are answered."""
        if not self._takes_no_more:
            self._takes_no_more = True
            self.sender.queue(f.goaway(self._last_id, f.NO_ERROR))
            self._tell_if_drained()

    def fail(self, fault: ConnectionFault) -> None:
        """Ends all streams, and tells the client why."""
        self.cancel(self.streams())
        self.sender.queue(f.goaway(self._last_id, fault.code, fault.text))

    # What streams ask for.

    def close(self, stream: Stream) -> None:
        """Forgets a stream whose answer is complete."""
        stream.is_open = False
        stream.call = None
        self.sender.forget(stream)
        self._inbound.forget(stream)
        self._streams.pop(stream.id, None)
        self._tell_if_drained()

    def call(self, route: Route, stream_id: int, message: bytes) -> None:
        """See quick_answers.Streams."""
        # Asked once, it need not be asked again.
        self._give(self._open(stream_id, route, may_be_quick=False), prefix(len(message)) + message, is_end=True)

    def answered_stream(self, stream_id: int) -> Stream:
        """See quick_answers.Streams."""
        stream = self._new_stream(stream_id)
        stream.has_request = True
        return stream

    def work_left(self, change: int) -> None:
        """Counts work that goes on although its stream has ended; it takes a new stream's place until it is done."""
        self._num_left += change

    @property
    def _is_full(self) -> bool:
        return len(self._streams) + self._num_left >= MAX_STREAMS

    # Frames.

    def _skip_preface(self, data: bytes) -> int:
        if data[: len(f.PREFACE)] != f.PREFACE[: len(data)]:
            raise ConnectionFault(f.PROTOCOL_ERROR, "this is no HTTP/2")
        if len(data) < len(f.PREFACE):
            return 0
        self._has_preface = True
        return len(f.PREFACE)

    def _begin_quickly(self, route: Route, data: bytes, at: int, stream_id: int) -> int:
        """Begins a request whose whole message is in the frames behind its headers; returns the place behind, or 0."""
        found = whole_message(data, at, stream_id, self._most_quick_bytes)
        if found is None or not self._is_new(stream_id):
            return 0
        # Streams alone hold answers back.
        if (self._streams or self._num_left) and (self._is_full or not self.sender.has_room):
            return 0
        message, end = found
        self._inbound.took(PREFIX_BYTES + len(message))
        self._last_id = stream_id
        self._quick.begin(self, route, stream_id, message)
        return end

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._parts is not None:
            if kind != f.CONTINUATION or stream_id != self._parts.stream_id:
                raise ConnectionFault(f.PROTOCOL_ERROR, "a header block is not continued")
            self._parts.add(flags, payload)
        elif kind == f.HEADERS:
            self._parts = HeaderParts(flags, stream_id, payload)
        try:
            if self._parts is not None:
                if self._parts.is_whole:
                    parts, self._parts = self._parts, None
                    self._take_headers(parts)
            elif kind == f.DATA:
                self._take_data(flags, stream_id, payload)
            elif kind == f.RST_STREAM:
                self._take_reset(stream_id, payload)
            elif kind == f.WINDOW_UPDATE:
                self._take_window(stream_id, payload)
            else:
                self._take_of_connection(kind, flags, stream_id, payload)
        except StreamFault as fault:
            self.sender.queue(f.rst_stream(stream_id, fault.code))
            stream = self._streams.get(stream_id)
            if stream is not None:
                self._cancelled(stream)

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        num_framed = len(payload)
        self._inbound.took(num_framed)
        stream = self._streams.get(stream_id)
        if stream is None:
            # Answered or reset before the client knew: what it still sends is let go.
            self._must_have_been(stream_id)
            return
        if stream.has_request:
            raise StreamFault(f.STREAM_CLOSED)
        if flags & f.PADDED:
            payload = f.unpadded(f.PADDED, payload)
        is_end = bool(flags & f.END_STREAM)
        try:
            credit = self._inbound.data(stream, num_framed, len(payload))
        except ServiceError as error:
            stream.only_head(self._routes.refusal_block(error))
            return
        stream.active_s = self._routes.now()
        if credit and not is_end:
            self.sender.queue(credit)
        self._give(stream, payload, is_end=is_end)

    def _give(self, stream: Stream, payload: bytes, *, is_end: bool) -> None:
        if is_end:
            self._inbound.complete(stream)
        if payload and stream.call is not None:
            stream.call.data(payload)
        if is_end and stream.call is not None:
            stream.call.end()

    def _take_headers(self, parts: HeaderParts) -> None:
        stream_id = parts.stream_id
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._heads.read_trailers(parts.block())
            if stream.has_request:
                raise StreamFault(f.STREAM_CLOSED)
            if not parts.is_end:
                raise StreamFault(f.PROTOCOL_ERROR)
            self._give(stream, b"", is_end=True)
            return
        is_new = self._is_new(stream_id)
        was_last, self._last_id = self._last_id, max(self._last_id, stream_id if is_new else 0)
        # Read in any case: it is part of what the next ones mean.
        route, num_expected = self._heads.find(parts.block())
        if not is_new:
            if stream_id <= was_last:
                raise StreamFault(f.STREAM_CLOSED)
            return
        if self._is_full:
            raise StreamFault(f.REFUSED_STREAM)
        stream = self._open(stream_id, route, may_be_quick=True)
        stream.num_expected = num_expected
        if parts.is_end:
            self._give(stream, b"", is_end=True)

    def _open(self, stream_id: int, route: Route, *, may_be_quick: bool) -> Stream:
        stream = self._new_stream(stream_id)
        call = route.open(stream, may_be_quick)
        if call is not None and stream.is_open:
            stream.call = call
            self._opened.append(stream)
        return stream

    def _new_stream(self, stream_id: int) -> Stream:
        window = self.sender.stream_window
        stream = Stream(self, stream_id, window=window, allowed=STREAM_WINDOW, now_s=self._routes.now())
        self._streams[stream_id] = stream
        return stream

    def _is_new(self, stream_id: int) -> bool:
        if not stream_id & 1:
            raise ConnectionFault(f.PROTOCOL_ERROR, "a client's streams have odd numbers")
        return stream_id > self._last_id and not self._takes_no_more

    def _must_have_been(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._last_id and not self._takes_no_more:
            raise ConnectionFault(f.PROTOCOL_ERROR, "a frame for a stream that was never opened")

    def _take_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(f.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        self._must_have_been(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._cancelled(stream)

    def _take_window(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(f.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        more = f.word(payload) & f.LARGEST_WINDOW
        if not stream_id:
            self.sender.more_window(more)
            return
        self._must_have_been(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self.sender.more_stream_window(stream, more)

    def _take_of_connection(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind in (f.PUSH_PROMISE, f.CONTINUATION):
            raise ConnectionFault(f.PROTOCOL_ERROR, "a frame that a client may not send here")
        if kind == f.PRIORITY:
            if not stream_id:
                raise ConnectionFault(f.PROTOCOL_ERROR, "PRIORITY of the connection")
            if len(payload) != 5:
                raise StreamFault(f.FRAME_SIZE_ERROR)
        elif kind in (f.SETTINGS, f.PING, f.GOAWAY) and stream_id:
            raise ConnectionFault(f.PROTOCOL_ERROR, "a frame of the connection came on a stream")
        elif kind == f.SETTINGS:
            self.has_settings = True
            self.sender.take_settings(flags, payload, self._streams.values())
        elif kind == f.PING:
            self._take_ping(flags, payload)
        # GOAWAY: the client opens no more, or closes; both show by themselves. Unknown kinds mean nothing.

    def _take_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(f.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not flags & f.ACK:
            self.sender.queue(f.frame(f.PING, f.ACK, 0, payload))
        elif payload == self._drain_ping:
            self.take_no_more()

    # Ends.

    def _tell_if_drained(self) -> None:
        if self._takes_no_more and not self._streams:
            self._on_drained()

    def _cancelled(self, stream: Stream) -> None:
        if stream.is_open:
            call = stream.call
            self.close(stream)
            if call is not None:
                call.cancelled()


def _nothing() -> None:
    pass
