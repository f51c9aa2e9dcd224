"""Where everything of an answer goes: text that answers of this size have in common, and blocks of a feature's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import itemgetter

import numpy as np

from service.codecs.framed_answer import FRAME_BYTES, FRAME_HEAD_BYTES, STREAM_AT, Cut, Envelope, frame_head
from service.core.types import Array
from service.direct import gather
from service.direct.memory import address_of

_DATA, _HEADERS, _END_STREAM, _END_HEADERS = 0, 1, 1, 4
_LENGTH_BYTES = 3
_WORD_BYTES = 4


# Features whose rows stand side by side, each with the floats of one row.
Parts = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """An answer of so many rows, but for its floats.

    size: its bytes.
    numbers: as direct.gather takes it, with the address of template; address: its own.
    cut: where its frames end; None where it is a message and no frames.
    num_parts: how much memory this takes, about: pieces, blocks and frames.
    """

    size: int
    template: bytes
    numbers: Array
    cut: Cut | None
    num_parts: int
    address: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.numbers.ctypes.data)


class ShapeWriter:
    """Writes a shape down from its beginning to its end."""

    def __init__(self) -> None:
        self.size = 0
        self._template = bytearray()
        self._pieces: list[list[int]] = []
        self._blocks: list[tuple[int, int, int, int, int]] = []
        self._marks: list[int] = []

    def text(self, data: bytes) -> None:
        """Adds bytes."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[gather.PIECE_TO] + last[gather.PIECE_LENGTH] == self.size:
            last[gather.PIECE_LENGTH] += len(data)
        else:
            self._pieces.append([len(self._template), len(data), self.size])
        self._template += data
        self.size += len(data)

    def floats(self, feature: int, rows: int, width: int) -> None:
        """Adds all rows of a feature, of so many floats each."""
        self.joined(((feature, width),), rows)

    def joined(self, parts: Parts, rows: int) -> None:
        """Adds all rows of several features, those of one row side by side."""
        self._rows(parts, 0, rows)

    def place(self, feature: int, rows: int, at: int, width: int) -> None:
        """Has the rows of a feature written at a place, with so many floats from one row to the next."""
        self._blocks.append((feature, 0, rows, at, width))

    def shape(self) -> AnswerShape:
        """Returns what was written."""
        return self._shape(None)

    def _rows(self, parts: Parts, first: int, count: int) -> None:
        width, at = _width(parts), self.size
        for feature, floats in parts:
            self._blocks.append((feature, first, count, at, width))
            at += 4 * floats
        self.size += 4 * count * width

    def _shape(self, cut: Cut | None) -> AnswerShape:
        template = bytes(self._template)
        head = (address_of(template), len(self._pieces), len(self._blocks), len(self._marks))
        # direct.gather takes all blocks of one feature behind each other.
        blocks = sorted(self._blocks, key=itemgetter(0))
        numbers = np.fromiter(chain(head, *self._pieces, *blocks, self._marks), np.int64)
        num_parts = len(self._pieces) + len(self._blocks) + len(self._marks)
        return AnswerShape(self.size, template, numbers, cut, num_parts)


class FramedShapeWriter(ShapeWriter):
    """Writes the shape of a gRPC answer down as HTTP/2 frames, with its stream's number to be filled in.

    No row of floats is cut, so frames are not all of one size.

    Args:
      num_bytes: of the message, which all that is added is together.
    """

    def __init__(self, envelope: Envelope, num_bytes: int) -> None:
        super().__init__()
        self._trailers = envelope.trailers
        self._frame(_HEADERS, _END_HEADERS, envelope.head_block)
        self._ends = [self.size]
        self._begin()
        # It is not compressed.
        self.text(b"\0" + num_bytes.to_bytes(_WORD_BYTES, "big"))

    @staticmethod
    def takes(width: int) -> bool:
        """Whether a row of so many floats fits into a frame."""
        return 4 * width <= FRAME_BYTES

    def text(self, data: bytes) -> None:
        """See ShapeWriter."""
        at = 0
        while at < len(data):
            if not self._room:
                self._next()
            end = min(len(data), at + self._room)
            super().text(data[at:end])
            at = end

    def joined(self, parts: Parts, rows: int) -> None:
        """See ShapeWriter."""
        first, width = 0, _width(parts)
        while first < rows:
            count = min(rows - first, self._room // (4 * width))
            if count:
                self._rows(parts, first, count)
                first += count
            else:
                self._end()
                first += self._full_frames(parts, first, rows - first)
                self._begin()

    def shape(self) -> AnswerShape:
        """See ShapeWriter."""
        self._end()
        self._frame(_HEADERS, _END_HEADERS | _END_STREAM, self._trailers)
        return self._shape(Cut(tuple(self._ends)))

    @property
    def _room(self) -> int:
        return FRAME_BYTES - (self.size - self._begin_at)

    def _frame(self, kind: int, flags: int, payload: bytes) -> None:
        self._head(len(payload), kind, flags)
        super().text(payload)

    def _head(self, length: int, kind: int, flags: int) -> None:
        self._marks.append(self.size + STREAM_AT)
        super().text(frame_head(length, kind, flags, 0))

    def _full_frames(self, parts: Parts, first: int, rows: int) -> int:
        """Adds frames full of features' rows, all of them alike; returns how many rows, which leaves some."""
        width = _width(parts)
        in_each = FRAME_BYTES // (4 * width)
        count = (rows - 1) // in_each
        if count:
            length = 4 * in_each * width
            size = FRAME_HEAD_BYTES + length
            begins = range(self.size, self.size + count * size, size)
            floats = [begin + FRAME_HEAD_BYTES for begin in begins]
            firsts = range(first, first + count * in_each, in_each)
            # One head is read again and again.
            self._pieces += [[len(self._template), FRAME_HEAD_BYTES, begin] for begin in begins]
            self._template += frame_head(length, _DATA, 0, 0)
            begin_at = 0
            for feature, own in parts:
                places = [at + begin_at for at in floats]
                self._blocks += zip(repeat(feature), firsts, repeat(in_each), places, repeat(width), strict=False)
                begin_at += 4 * own
            self._marks += [begin + STREAM_AT for begin in begins]
            self._ends += [begin + size for begin in begins]
            self.size += count * size
        return count * in_each

    def _begin(self) -> None:
        # How long it is shows at its end.
        self._head(0, _DATA, 0)
        self._begin_at = self.size
        self._length_at = len(self._template) - FRAME_HEAD_BYTES

    def _end(self) -> None:
        length = (self.size - self._begin_at).to_bytes(_LENGTH_BYTES, "big")
        self._template[self._length_at : self._length_at + _LENGTH_BYTES] = length
        self._ends.append(self.size)

    def _next(self) -> None:
        self._end()
        self._begin()


def _width(parts: Parts) -> int:
    return sum(floats for _, floats in parts)
