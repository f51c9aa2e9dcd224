"""Memory that each thread uses again for every request: fresh pages cost more than a lookup."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from service.core.types import Array

# What is larger is not kept.
_MAX_KEPT_BYTES = 1 << 23
_LEAST = 1 << 12


class Buffer(NamedTuple):
    """An array of any content in which nothing outlives a request, its address, and a view of its elements."""

    array: Array
    address: int
    view: memoryview

    def bytes(self, at: int, size: int) -> bytes:
        """Returns a copy of some elements."""
        # A slice of a view; by ctypes it takes twice as long, as it does by the array.
        return self.view[at : at + size].tobytes()


def buffer_of(array: Array) -> Buffer:
    """Returns an array with its address, which takes longer to find than it takes to use."""
    return Buffer(array, array.ctypes.data, array.reshape(-1).data)


_NOTHING = buffer_of(np.empty(0, np.uint8))


class Scratch(threading.local):
    """A buffer that grows; each thread has its own."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._kept = _NOTHING

    def of(self, size: int) -> Buffer:
        """Returns a buffer of at least that many elements, the same one each time."""
        kept = self._kept
        if kept.array.shape[0] >= size:
            return kept
        array: Array = np.empty(max(2 * size, _LEAST), self._dtype)
        found = buffer_of(array)
        if array.nbytes <= _MAX_KEPT_BYTES:
            self._kept = found
        return found
