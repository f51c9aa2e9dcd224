"""Whole answers as frames: the shape that nearly all calls have.

Source: RFC 9113, section 6; gRPC over HTTP2 (PROTOCOL-HTTP2.md), Requests and Responses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from service.codecs.framed_answer import Framed
from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.messages import PREFIX_BYTES, prefix
from service.transports.grpc.h2.metadata import OK_TRAILERS
from service.transports.grpc.h2.stream import Stream

# An answer up to this size is joined with its prefix into one frame.
_JOINED_BYTES = 8 << 10
# A frame's head, and the prefix of an uncompressed message.
_DATA_START = struct.Struct(">BHBBIBI").pack


def answer_frames(stream_id: int, head_block: bytes, answer: bytes, frame_bytes: int) -> Sequence[bytes | memoryview]:
    """Returns the frames of a whole answer, in pieces that point into its message; no frame is larger."""
    size = len(answer)
    counted = min(size + PREFIX_BYTES, frame_bytes)
    first = (
        f.frame_head(len(head_block), f.HEADERS, f.END_HEADERS, stream_id)
        + head_block
        + _DATA_START(counted >> 16, counted & 0xFFFF, f.DATA, 0, stream_id, 0, size)
    )
    last = f.frame_head(len(OK_TRAILERS), f.HEADERS, f.END_HEADERS | f.END_STREAM, stream_id) + OK_TRAILERS
    at = counted - PREFIX_BYTES
    if at == size:
        return (first, answer, last)
    message = memoryview(answer)
    return [first, message[:at], *f.data_frames(stream_id, message[at:], frame_bytes), last]


def send_frames(stream: Stream, framed: Framed) -> None:
    """Sends a whole answer that was made as frames, as the client takes it."""
    stream.write_frames(framed)
    stream.trailers(OK_TRAILERS)


def send_answer(stream: Stream, head_block: bytes, answer: bytes, *, is_compressed: bool = False) -> None:
    """Sends a whole answer as the client takes it."""
    stream.head(head_block)
    start = prefix(len(answer), is_compressed=is_compressed)
    if len(answer) <= _JOINED_BYTES:
        stream.write(start + answer)
    else:
        stream.write(start)
        stream.write(answer)
    stream.trailers(OK_TRAILERS)
