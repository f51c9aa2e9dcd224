"""Writes HTTP/2 frames byte by byte, valid or not, and parses a server's frames. Source: RFC 9113, RFC 7541."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5
MAX_WINDOW = 2**31 - 1
_HEAD_BYTES, _FRAME_BYTES = 9, 16384
_ERRORS = (
    "NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED FRAME_SIZE_ERROR "
    "REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM INADEQUATE_SECURITY HTTP_1_1_REQUIRED"
).split()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns the bytes of one HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Returns a SETTINGS frame; each pair is the number and the value of a setting."""
    return frame(SETTINGS, 0, 0, b"".join(number.to_bytes(2) + value.to_bytes(4) for number, value in pairs))


def window_update(stream: int, size: int) -> bytes:
    """Returns a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4))


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, (8).to_bytes(4))


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """Encodes an integer by RFC 7541, 5.1, in the low `bits` bits of a byte; `first` has the byte's other bits."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out = bytearray([first | most])
    value -= most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def field(name: bytes, value: bytes, *, first: int = 0x00) -> bytes:
    """Encodes a literal header field for HPACK; first: 0x40 adds the field to the HPACK table, 0x00 does not."""
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes a header block whose fields are all literal."""
    return b"".join(field(name, value) for name, value in fields)


def data_frames(stream: int, body: bytes) -> bytes:
    """Returns the DATA frames of a whole body, at least one."""
    parts = _parts(body)
    sent = [frame(DATA, 0, stream, part) for part in parts[:-1]]
    return b"".join([*sent, frame(DATA, END_STREAM, stream, parts[-1])])


def header_frames(stream: int, fields: bytes, flags: int = 0) -> bytes:
    """Returns a header block of more than one frame: a HEADERS frame with the flags, and CONTINUATIONs."""
    first, *more, last = _parts(fields)
    sent = [frame(HEADERS, flags, stream, first), *(frame(CONTINUATION, 0, stream, part) for part in more)]
    return b"".join([*sent, frame(CONTINUATION, END_HEADERS, stream, last)])


def _parts(data: bytes) -> list[bytes]:
    return [data[at : at + _FRAME_BYTES] for at in range(0, max(len(data), 1), _FRAME_BYTES)]


class Received:
    """Counter of the frames that a server sent, and of streams that it ended.

    watched: the number of a stream, whose DATA are in `data`.
    """

    def __init__(self) -> None:
        self.frames: Counter[int] = Counter()
        self.resets: Counter[str] = Counter()
        self.ended_streams: set[int] = set()
        self.goaway = ""
        self.max_frame = _FRAME_BYTES
        self.watched = 0
        self.data = bytearray()
        self.is_ended = False
        self._waiting = bytearray()

    def feed(self, data: bytes) -> None:
        self._waiting += data
        at = 0
        while len(self._waiting) - at >= _HEAD_BYTES:
            size = int.from_bytes(self._waiting[at : at + 3])
            end = at + _HEAD_BYTES + size
            if len(self._waiting) < end:
                break
            kind, flags = self._waiting[at + 3], self._waiting[at + 4]
            stream = int.from_bytes(self._waiting[at + 5 : at + 9])
            self._count(kind, flags, stream, memoryview(self._waiting)[at + _HEAD_BYTES : end].tobytes())
            at = end
        del self._waiting[:at]

    def _count(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.frames[kind] += 1
        if kind == GOAWAY:
            code = int.from_bytes(payload[4:8])
            self.goaway = _ERRORS[code] if code < len(_ERRORS) else str(code)
        elif kind == SETTINGS:
            pairs = [payload[at : at + 6] for at in range(0, len(payload), 6)]
            self.max_frame = next((int.from_bytes(p[2:]) for p in pairs if p[1] == MAX_FRAME_SIZE), self.max_frame)
        elif kind == RST_STREAM:
            code = int.from_bytes(payload)
            self.resets[_ERRORS[code] if code < len(_ERRORS) else str(code)] += 1
        is_end = kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM != 0)
        if stream and is_end:
            self.ended_streams.add(stream)
        if stream == self.watched and stream:
            if kind == DATA:
                self.data += payload
            self.is_ended = self.is_ended or is_end
