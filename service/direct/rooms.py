"""Memory for vectors that a graph goes on from, used again: making its arrays takes longer than a small lookup."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from service.core.types import Array

# No more is kept while nobody uses it.
_KEPT_BYTES = 1 << 20
# TensorFlow copies what does not begin at a multiple of 64 bytes.
_ALIGNED_BYTES = 64

Shapes = tuple[tuple[int, ...], ...]

# Float32 arrays of any content one behind the other, the address of the first, and how many bytes they are.
Room = tuple[tuple[Array, ...], int, int]


class Rooms:
    """Those that one thread does not use now. Concurrency: that thread."""

    def __init__(self) -> None:
        self._free: defaultdict[Shapes, list[Room]] = defaultdict(list)
        self._free_bytes = 0

    def take(self, shapes: Shapes) -> Room:
        """Returns room for arrays of these shapes."""
        free = self._free.get(shapes)
        if not free:
            return _new_room(shapes)
        room = free.pop()
        self._free_bytes -= room[2]
        return room

    def give_back(self, shapes: Shapes, room: Room) -> None:
        """Takes back what nobody reads any more."""
        num_bytes = room[2]
        if num_bytes > _KEPT_BYTES:
            return
        if self._free_bytes + num_bytes > _KEPT_BYTES:
            # Clients ask for sizes that change: what they asked for last is kept.
            self._free.clear()
            self._free_bytes = 0
        self._free[shapes].append(room)
        self._free_bytes += num_bytes


def starts(shapes: Shapes) -> tuple[tuple[int, ...], int]:
    """Returns where float32 arrays of these shapes begin, in bytes, and where the last one ends; all are aligned.

    >>> starts(((2, 3), (1, 17), (1,)))
    ((0, 64, 192), 196)
    """
    begins, end = [], 0
    for shape in shapes:
        begin = end + -end % _ALIGNED_BYTES
        begins.append(begin)
        end = begin + 4 * math.prod(shape)
    return tuple(begins), end


def _new_room(shapes: Shapes) -> Room:
    begins, num_bytes = starts(shapes)
    octets: Array = np.empty(num_bytes + _ALIGNED_BYTES, np.uint8)
    address: int = octets.ctypes.data
    skipped = -address % _ALIGNED_BYTES
    arrays = []
    for begin, shape in zip(begins, shapes, strict=True):
        first = skipped + begin
        arrays.append(octets[first : first + 4 * math.prod(shape)].view(np.float32).reshape(shape))
    return tuple(arrays), address + skipped, num_bytes
