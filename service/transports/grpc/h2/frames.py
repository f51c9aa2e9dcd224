"""HTTP/2 frames as bytes: their numbers, and how those that a server sends are written.

Source: RFC 9113, sections 4, 6 and 7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from service.codecs.framed_answer import FRAME_BYTES as FRAME_BYTES
from service.codecs.framed_answer import FRAME_HEAD_BYTES
from service.codecs.framed_answer import frame_head as frame_head

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = FRAME_HEAD_BYTES
FIRST_WINDOW = 65535
LARGEST_WINDOW = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 2, 3, 4, 5, 6

# Length (in two parts), kind, flags and stream.
read_head = struct.Struct(">BHBBI").unpack_from
_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class ConnectionFault(Exception):
    """The peer broke the protocol in a way that ends the connection.

    Args:
      code: of GOAWAY.
      text: goes with it, for whoever reads the client's log.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """The peer broke the protocol in a way that ends one stream. code: of RST_STREAM."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Returns one frame.

    >>> frame(PING, ACK, 0, b"12345678").hex()
    '0000080601000000003132333435363738'
    """
    return frame_head(len(payload), kind, flags, stream_id) + payload


def data_frames(stream_id: int, data: memoryview, frame_bytes: int) -> list[bytes | memoryview]:
    """Returns the frames of a stream's data, in pieces that point into it; no frame is larger.

    >>> b"".join(data_frames(1, memoryview(b"abc"), 2)).hex(" ")
    '00 00 02 00 00 00 00 00 01 61 62 00 00 01 00 00 00 00 00 01 63'
    """
    size = len(data)
    whole = size - size % frame_bytes
    head = frame_head(frame_bytes, DATA, 0, stream_id)
    pieces = [piece for at in range(0, whole, frame_bytes) for piece in (head, data[at : at + frame_bytes])]
    if whole < size:
        pieces += (frame_head(size - whole, DATA, 0, stream_id), data[whole:])
    return pieces


def rst_stream(stream_id: int, code: int) -> bytes:
    """Returns what ends a stream at once."""
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_id: int, code: int, text: str = "") -> bytes:
    """Returns what announces the end of a connection."""
    return frame(GOAWAY, 0, 0, _WORD.pack(last_id) + _WORD.pack(code) + text.encode())


def window_update(stream_id: int, more: int) -> bytes:
    """Returns leave to send more bytes; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(more))


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Returns a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*value) for value in values))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yields what a SETTINGS frame sets.

    Raises:
      ConnectionFault: a value that HTTP/2 does not allow.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a length that is no multiple of 6")
    for number, value in _SETTING.iter_unpack(payload):
        if number == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
        if number == MAX_FRAME_SIZE and not FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
        if number == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        yield number, value


def word(payload: bytes, at: int = 0) -> int:
    """Returns the four bytes at a place of a payload, as a number."""
    return int(_WORD.unpack_from(payload, at)[0])


def unpadded(flags: int, payload: bytes) -> bytes:
    """Returns the payload of DATA or HEADERS without padding and priority; raises ConnectionFault."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not end:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a padded frame is empty")
        start, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionFault(PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[start:end]
