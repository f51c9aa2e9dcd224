"""One HTTP/2 connection: bytes in, calls out, answers back. httpunk holds the protocol's state, this class its bytes.

httpunk's own server runs one asyncio task per request and two per connection. Calls here are mostly done before the
read that brought them returns, so its state machine is driven directly from the transport's callbacks instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from httpunk._httpunk import (
    H2_FLAG_CAPACITY,
    H2_FLAG_STOP_ACCEPTING,
    H2_HEADERS_OPENED,
    H2_HEADERS_TRAILERS,
    H2Error,
    H2FrameData,
    H2FrameGoAway,
    H2FrameHeaders,
    H2FramePing,
    H2FrameRstStream,
    H2FrameSettings,
    H2FrameStreamError,
    H2FrameWindowUpdate,
    H2Reason,
    H2StreamError,
    H2Streams,
)
from httpunk.http import HeaderMap

from service.transports.grpc.h2.stream import Call, Stream

# A stream's bytes that may be on their way before they are taken, and the same for all streams of a connection.
_STREAM_WINDOW = 4 << 20
_CONNECTION_WINDOW = 16 << 20
# Answers wait in pieces of this size, so that a slow reader holds the answer's array and not copies of it.
_SEND_BUFFER = 1 << 20
# The least that HTTP/2 has, and what holds from the first byte on: larger frames that come in one read with a client's
# acknowledgement of a larger limit would be decoded before it.
_FRAME_BYTES = 16 << 10
_HEADER_BYTES = 16 << 10
# The state holds headers to no limit of its own; they are the only frames that may take longer to come than this.
_UNFRAMED_BYTES = 64 << 10
_MAX_STREAMS = 1000
# Smaller batches are copied, so that the state gets its buffer back at once.
_COPIED_BYTES = 16 << 10
# A client must have said that it speaks HTTP/2 by then.
_HANDSHAKE_S = 20.0


class Connection(asyncio.Protocol):
    """Reads frames, hands calls what is theirs, writes what they answer.

    Args:
      open_call: makes the call of a new stream from its method, path and headers; None where it refused it.
      on_lost: told when the connection is gone.

    Concurrency: event loop only.
    """

    def __init__(
        self,
        open_call: Callable[[Connection, Stream, str, str, HeaderMap], Call | None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._open_call = open_call
        self._on_lost = on_lost
        # Any: handles are our streams, which its types do not know.
        self._state: Any = H2Streams(
            "server",
            initial_window_size=_STREAM_WINDOW,
            connection_window=_CONNECTION_WINDOW,
            max_frame_size=_FRAME_BYTES,
            max_header_list_size=_HEADER_BYTES,
            max_send_buf_size=_SEND_BUFFER,
            max_concurrent_streams=_MAX_STREAMS,
            max_local_error_reset_streams=1024,
            auto_date_header=False,
        )
        self._transport: Any = None
        self._spare = Stream(self)
        self._streams: dict[int, Stream] = {}
        self._opened: list[Stream] = []
        self._is_paused = self._is_draining = self._is_in_batch = False
        self._held: memoryview | None = None
        self._unframed_bytes = 0
        self._handshake: asyncio.TimerHandle | None = None

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport
        # Zero: a write is tried at once, and pause_writing says that some of it is kept for later.
        self._transport.set_write_buffer_limits(high=0)
        self._handshake = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self._transport.abort)
        self._state.begin()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._is_in_batch = True
        try:
            self._unframed_bytes += len(data)
            for frame in self._state.receive(data):
                self._unframed_bytes = 0
                try:
                    self._take(frame)
                except H2StreamError as error:
                    self._stream_failed(error)
            self._state.maybe_goaway_reply()
        except H2Error as error:
            self._connection_failed(error)
        if self._unframed_bytes > _UNFRAMED_BYTES:
            self._connection_failed(H2Error(H2Reason.ENHANCE_YOUR_CALM))
        self._is_in_batch = False
        if self._opened:
            for stream in self._opened:
                if stream.is_open and stream.call is not None:
                    stream.call.batch_done()
            self._opened.clear()
        self.flush()

    def eof_received(self) -> bool:
        """See asyncio.Protocol; a client that has said its last word is still answered, if that was a whole request."""
        for stream in list(self._streams.values()):
            if not stream.has_request:
                self._cancelled(stream)
        self._is_draining = True
        return bool(self._streams)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_paused = False
        if self._held is not None:
            held, self._held = self._held, None
            held.release()
            self._written()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._handshake is not None:
            self._handshake.cancel()
        self._held = None
        self._state.fail(None)
        for stream in list(self._streams.values()):
            self._cancelled(stream)
        # It points back here: without this the buffers of a closed connection stay until a full collection.
        del self._spare
        self._on_lost(self)

    # What calls and the server ask for.

    def send_head(self, stream: Stream, headers: HeaderMap, status: int, *, end_stream: bool) -> None:
        """Queues the answer's head."""
        verdict = self._state.send_response_head(stream.id, status, headers, end_stream)
        if verdict.flags:
            self._after(verdict.flags)

    def send_data(self, stream_id: int, data: bytes, offset: int) -> tuple[int, bool]:
        """Queues what the windows take of data[offset:]; returns how many bytes those are, and whether they are all."""
        verdict = self._state.send_data(stream_id, data, offset, False)
        if verdict.flags:
            self._after(verdict.flags)
        if verdict.stopped is not None:
            # The client is gone; its RST_STREAM or the lost connection ends the stream.
            return 0, False
        return verdict.sent, verdict.done

    def send_trailers(self, stream_id: int, trailers: HeaderMap) -> None:
        """Queues the end of an answer."""
        verdict = self._state.send_trailers(stream_id, trailers)
        if verdict.flags:
            self._after(verdict.flags)

    def close(self, stream: Stream) -> None:
        """Forgets a stream whose answer is complete, and the connection when it was the last of a drained one."""
        stream.is_open = False
        stream.call = None
        self._streams.pop(stream.id, None)
        if self._is_draining:
            self._close_when_drained()

    def flush(self) -> None:
        """Writes what is queued; callers outside data_received do so once they are done."""
        if self._is_in_batch or self._is_paused or self._held is not None:
            return
        state = self._state
        while state.has_pending() and not self._transport.is_closing():
            batch, _ = state.take_pending()
            if len(batch) <= _COPIED_BYTES:
                data = bytes(batch)
                batch.release()
                self._transport.write(data)
            else:
                self._transport.write(batch)
                try:
                    batch.release()
                except BufferError:
                    # The transport keeps it: more is taken when it has been written.
                    self._held = batch
                    return
            self._written()
            if self._is_paused:
                return

    def drain(self) -> None:
        """Tells the client to open no more streams, and closes once those that are open have ended."""
        if not self._transport.is_closing():
            self._after(self._state.begin_graceful_shutdown())
            for stream in list(self._streams.values()):
                if stream.call is not None:
                    stream.call.draining()
            self.flush()

    def abort(self) -> None:
        """Closes at once."""
        self._transport.abort()

    # Frames.

    def _take(self, frame: Any) -> None:
        kind, state = type(frame), self._state
        if kind is H2FrameHeaders:
            self._take_headers(frame)
        elif kind is H2FrameData:
            verdict = state.recv_data(frame)
            stream, payload = verdict.handle, verdict.payload
            if verdict.flags:
                self._after(verdict.flags)
            if payload is not None:
                # Kept apart from the windows: a message's size is bounded by the reader, not by flow control.
                if verdict.budgeted:
                    state.release_data_frame(frame.stream_id, len(payload))
                flags = state.release_capacity(frame.stream_id, len(payload))
                if flags:
                    self._after(flags)
                if stream is not None and stream.is_open:
                    stream.call.data(payload)
            if verdict.eof and stream is not None and stream.is_open:
                stream.has_request = True
                stream.call.end()
        elif kind is H2FrameWindowUpdate:
            for stream in state.recv_window_update(frame):
                stream.resume()
        elif kind is H2FrameSettings:
            if self._handshake is not None:
                self._handshake.cancel()
                self._handshake = None
            _, woken, flags = state.recv_settings(frame)
            self._after(flags)
            for stream in woken:
                stream.resume()
        elif kind is H2FramePing:
            self._after(state.recv_ping(frame))
        elif kind is H2FrameRstStream:
            reset = state.recv_reset(frame)
            if reset is not None:
                self._cancelled(reset[0])
                self._after(reset[3])
        elif kind is H2FrameGoAway:
            aborted, flags = state.recv_go_away(frame)
            for stream, _ in aborted:
                self._cancelled(stream)
            self._after(flags)
        elif kind is H2FrameStreamError:
            raise H2StreamError(frame.stream_id, frame.error_code, "library")

    def _take_headers(self, frame: Any) -> None:
        stream = self._spare
        verdict = self._state.recv_headers(frame, stream)
        if verdict.flags:
            self._after(verdict.flags)
        if verdict.kind == H2_HEADERS_OPENED:
            self._spare = Stream(self)
            stream.id = verdict.stream_id
            stream.is_open = True
            self._streams[stream.id] = stream
            self._state.accepted(stream.id)
            call = self._open_call(self, stream, frame.method, frame.path, frame.headers)
            if call is not None and stream.is_open:
                stream.call = call
                self._opened.append(stream)
                if verdict.eof:
                    stream.has_request = True
                    call.end()
        elif verdict.kind == H2_HEADERS_TRAILERS and verdict.handle.is_open:
            verdict.handle.has_request = True
            verdict.handle.call.end()

    # Ends.

    def _stream_failed(self, error: H2StreamError) -> None:
        # The failing frame may have taken the spare stream.
        self._spare = Stream(self)
        stream_id, reason, initiator = error.args[:3]
        if initiator != "remote":
            verdict = self._state.reset_on_error(stream_id, reason)
            self._after(verdict.flags)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._cancelled(stream)

    def _connection_failed(self, error: H2Error) -> None:
        reason = error.args[0] if error.args and isinstance(error.args[0], int) else int(H2Reason.PROTOCOL_ERROR)
        self._state.send_goaway(reason)
        self._is_in_batch = False
        self.flush()
        self._transport.close()

    def _cancelled(self, stream: Stream) -> None:
        if stream.is_open:
            call = stream.call
            self.close(stream)
            if call is not None:
                call.cancelled()

    def _after(self, flags: int) -> None:
        if flags & H2_FLAG_CAPACITY:
            stream = self._state.next_capacity_wake()
            if stream is not None:
                stream.resume()
        if flags & H2_FLAG_STOP_ACCEPTING:
            self._is_draining = True
            self._close_when_drained()

    def _written(self) -> None:
        for stream in self._state.credit_written():
            stream.resume()

    def _close_when_drained(self) -> None:
        if not self._streams:
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        self.flush()
        self._transport.close()
