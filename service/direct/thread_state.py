"""What each thread reads requests with, kept so that a request allocates none of it."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np

from service.core.types import Array
from service.direct.scan import COLUMNS, MAX_INPUTS, SKELETON_BYTES

_SCRATCH_INTS = 1 << 18


class ThreadState:
    """Buffers and their addresses. Concurrency: the thread that got it.

    found: [(1 + MAX_INPUTS) * COLUMNS] int64, what scan found.
    skeleton: what scan wrote there.
    """

    __slots__ = ("thread", "found", "found_at", "skeleton", "skeleton_at", "_scratch", "_scratch_at", "_arrays")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        found: Any = np.zeros((1 + MAX_INPUTS) * COLUMNS, np.int64)
        skeleton: Any = np.zeros(SKELETON_BYTES, np.uint8)
        self._scratch = np.empty(_SCRATCH_INTS, np.int64)
        # Views, for an element of an array takes ten times as long to read.
        self.found, self.found_at = memoryview(found), found.ctypes.data
        self.skeleton, self.skeleton_at = memoryview(skeleton), skeleton.ctypes.data
        self._scratch_at = self._scratch.ctypes.data
        self._arrays = (found, skeleton)

    def scratch(self, num_bytes: int) -> tuple[Array, int]:
        """Returns room for all integers of a request of so many bytes, to be held while it is used, and its address."""
        if num_bytes <= _SCRATCH_INTS:
            return self._scratch, self._scratch_at
        # Not kept: one client's largest request is not to cost the server memory for good.
        large = np.empty(num_bytes, np.int64)
        return large, large.ctypes.data


class ThreadStates:
    """The states of all threads. Concurrency: any thread."""

    def __init__(self) -> None:
        self._states: dict[int, ThreadState] = {}

    def mine(self) -> ThreadState:
        """Returns the calling thread's."""
        thread = get_ident()
        try:
            return self._states[thread]
        except KeyError:
            state = self._states[thread] = ThreadState(thread)
            return state
