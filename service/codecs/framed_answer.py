"""An answer over gRPC in one piece of memory, as the HTTP/2 frames that it is sent in.

Made at once with what it holds, it needs no frames to be cut out of it, and no list of pieces to be put together.

Source: RFC 9113, section 4.1 and 6.1; gRPC over HTTP2 (PROTOCOL-HTTP2.md), Responses.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

FRAME_HEAD_BYTES = 9
# Where a frame's head has the four bytes of its stream's number.
STREAM_AT = 5
# What any peer takes; larger frames would only hold others up.
FRAME_BYTES = 16 << 10

_HEAD = struct.Struct(">BHBBI").pack


def frame_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Returns the nine bytes before a frame's payload."""
    return _HEAD(length >> 16, length & 0xFFFF, kind, flags, stream_id)


class Envelope(NamedTuple):
    """What stands around a message: the header blocks before and behind it. The same for many answers."""

    head_block: bytes
    trailers: bytes


class Cut:
    """Where the frames of an answer end, and what windows count of them.

    ends: of the headers before the message, and of each DATA frame; trailers come behind the last.
    num_counted: what windows count of all of it.
    """

    __slots__ = ("ends", "num_counted", "_counted")

    def __init__(self, ends: tuple[int, ...]) -> None:
        self.ends = ends
        # Up to each end. Heads are not counted, and neither are the headers.
        self._counted = tuple([end - ends[0] - FRAME_HEAD_BYTES * i for i, end in enumerate(ends)])
        self.num_counted = self._counted[-1]

    def whole_frames(self, number: int, most: int) -> tuple[int, int]:
        """Returns how far a window of so many bytes reaches, in whole frames.

        Args:
          number: of those that have been sent.

        Returns:
          How many have been sent then, and what windows count of those that were not before.
        """
        before = self._counted[number]
        reached = bisect_right(self._counted, before + most) - 1
        return reached, self._counted[reached] - before


# The frames of a whole answer, and where they end.
Framed = tuple[bytes, Cut]
