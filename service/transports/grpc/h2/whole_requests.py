"""Requests whose message is there as a whole: the shape that nearly all calls have.

Source: RFC 9113, section 6.1; gRPC over HTTP2 (PROTOCOL-HTTP2.md), Requests.
"""

from __future__ import annotations

import struct

from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.messages import PREFIX_BYTES

# A frame's head, and the prefix of an uncompressed message.
_read_start = struct.Struct(">BHBBIBI").unpack_from
_START_BYTES = f.HEAD_BYTES + PREFIX_BYTES


def whole_message(data: bytes, at: int, stream_id: int, most_bytes: int) -> tuple[bytes, int] | None:
    """Returns the plain message in the DATA frames at a place, and where they end.

    Args:
      most_bytes: of a message.

    Returns:
      None where it is not all that the stream's request holds, where some of it is not there, or where anything about
      it is unusual: whoever looks closer says what is wrong, if anything is.
    """
    if len(data) - at < _START_BYTES:
        return None
    high, low, kind, flags, of_stream, is_compressed, length = _read_start(data, at)
    if kind or high or of_stream != stream_id or is_compressed or length > most_bytes or low > f.FRAME_BYTES:
        return None
    begin = at + _START_BYTES
    after = at + f.HEAD_BYTES + low
    if flags == f.END_STREAM:
        return (data[begin:after], after) if low == PREFIX_BYTES + length and after <= len(data) else None
    if flags or low < PREFIX_BYTES:
        return None
    return _joined(data, begin, after, stream_id, length)


def _joined(data: bytes, begin: int, after: int, stream_id: int, length: int) -> tuple[bytes, int] | None:
    """Returns what whole_message does, of a message whose first part is data[begin:after]."""
    view = memoryview(data)
    parts, num_left, flags = [view[begin:after]], length - (after - begin), 0
    while not flags:
        if len(data) - after < f.HEAD_BYTES:
            return None
        high, low, kind, flags, of_stream = f.read_head(data, after)
        begin = after + f.HEAD_BYTES
        after = begin + low
        num_left -= low
        if kind or high or of_stream != stream_id or num_left < 0 or low > f.FRAME_BYTES or after > len(data):
            return None
        parts.append(view[begin:after])
    return (b"".join(parts), after) if flags == f.END_STREAM and not num_left else None
