"""A header block that comes in pieces: HEADERS, and CONTINUATION behind it."""

from __future__ import annotations

from service.transports.grpc.h2 import frames as f
from service.transports.grpc.h2.frames import ConnectionFault

# More is not put together: neither bytes nor pieces, which may be empty.
_MAX_BYTES, _MAX_PIECES = 64 << 10, 16


class HeaderParts:
    """What has come of one header block. is_end: the request ends with it."""

    __slots__ = ("stream_id", "is_end", "is_whole", "_pieces", "_num_bytes")

    def __init__(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.stream_id = stream_id
        self.is_end = bool(flags & f.END_STREAM)
        if flags & (f.PADDED | f.HAS_PRIORITY):
            payload = f.unpadded(flags, payload)
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self.is_whole = False
        self.add(flags, payload)

    def add(self, flags: int, payload: bytes) -> None:
        """Takes a piece; raises ConnectionFault where they are too many."""
        self._pieces.append(payload)
        self._num_bytes += len(payload)
        if self._num_bytes > _MAX_BYTES or len(self._pieces) > _MAX_PIECES:
            raise ConnectionFault(f.ENHANCE_YOUR_CALM, "a header block is too large")
        self.is_whole = bool(flags & f.END_HEADERS)

    def block(self) -> bytes:
        """Returns the pieces as one."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
