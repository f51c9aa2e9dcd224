"""An answer that was made as frames, on its way through the client's windows."""

from __future__ import annotations

from collections.abc import Sequence

from service.codecs.framed_answer import FRAME_HEAD_BYTES, Framed
from service.transports.grpc.h2.frames import data_frames


class FrameRun:
    """The DATA frames of an answer that are not sent yet. Event loop only."""

    __slots__ = ("_view", "_cut", "_number", "_rest")

    def __init__(self, framed: Framed) -> None:
        data, self._cut = framed
        self._view = memoryview(data)
        # How many frames are begun, and what is left of the last of them.
        self._number = 0
        self._rest = self._view[:0]

    @property
    def is_empty(self) -> bool:
        """Whether all of them are sent."""
        return not self._rest and self._number == len(self._cut.ends) - 1

    def take(self, stream_id: int, most: int) -> tuple[Sequence[bytes | memoryview], int]:
        """Returns the next frames, and what windows count of them: at most so much, and some of it."""
        if not self._rest:
            begin = self._cut.ends[self._number]
            self._number, num_counted = self._cut.whole_frames(self._number, most)
            if num_counted:
                return (self._view[begin : self._cut.ends[self._number]],), num_counted
            # The windows take less than the next frame: it goes in smaller ones.
            self._number += 1
            self._rest = self._view[begin + FRAME_HEAD_BYTES : self._cut.ends[self._number]]
        part, self._rest = self._rest[:most], self._rest[most:]
        return data_frames(stream_id, part, len(part)), len(part)
