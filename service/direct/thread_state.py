"""What each thread reads requests with, kept so that a request allocates none of it, and what it has begun to look up.

Requests that came together are looked up in one compiled call, and the graphs that go on from there run one behind the
other: kernels with their tables, TensorFlow and the interpreter throw each other out of the processor's caches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from service.core.types import Array
from service.direct import gather
from service.direct.rooms import Rooms
from service.direct.scan import COLUMNS, MAX_INPUTS, SKELETON_BYTES

_SCRATCH_INTS = 1 << 18
# So many lookups wait for each other at most.
MOST_JOBS = 64
_JOB = struct.Struct(f"={gather.JOB_COLUMNS}q")
# Writes the arguments of gather.answer: (jobs, job_at, *arguments).
PACK_JOB = _JOB.pack_into


# Whether each lookup of a round came to its end, in the order in which they were begun; empty until they are done.
Round = list[bool]
_ALL_DONE = [True] * MOST_JOBS


class ThreadState:
    """Buffers and their addresses. Concurrency: the thread that got it.

    found: [(1 + MAX_INPUTS) * COLUMNS] int64, what scan found; another one after each `look_up_later`.
    skeleton: what scan wrote there.
    jobs, job_at: where PACK_JOB writes the next lookup's.
    rooms: for vectors that a graph goes on from.
    """

    __slots__ = (
        "thread",
        "found",
        "found_at",
        "skeleton",
        "skeleton_at",
        "_scratch",
        "_scratch_at",
        "_arrays",
        "_places",
        "jobs",
        "job_at",
        "rooms",
        "_jobs_at",
        "_done",
        "_done_at",
        "_kept",
        "_next_steps",
        "_round",
    )

    def __init__(self, thread: int) -> None:
        self.thread = thread
        skeleton: Any = np.zeros(SKELETON_BYTES, np.uint8)
        jobs: Any = np.zeros(MOST_JOBS * _JOB.size, np.uint8)
        done: Any = np.zeros(MOST_JOBS, np.int64)
        self._scratch = np.empty(_SCRATCH_INTS, np.int64)
        self.skeleton, self.skeleton_at = memoryview(skeleton), skeleton.ctypes.data
        self.jobs, self._jobs_at = memoryview(jobs), jobs.ctypes.data
        self._done, self._done_at = memoryview(done), done.ctypes.data
        self._scratch_at = self._scratch.ctypes.data
        self._arrays = (skeleton, jobs, done)
        # What each lookup of a round has: found, found_at and job_at. Made when there are so many.
        self._places = [_new_place(0)]
        self.found, self.found_at, self.job_at = self._places[0]
        self.rooms = Rooms()
        # What the lookups of this round read and write.
        self._kept: list[Any] = []
        # Which of them something goes on from, and that.
        self._next_steps: list[tuple[int, Callable[[], None]]] = []
        self._round: Round = []

    def scratch(self, num_bytes: int) -> tuple[Array, int]:
        """Returns room for all integers of a request of so many bytes, to be held while it is used, and its address."""
        if num_bytes <= _SCRATCH_INTS:
            return self._scratch, self._scratch_at
        # Not kept: one client's largest request is not to cost the server memory for good.
        large = np.empty(num_bytes, np.int64)
        return large, large.ctypes.data

    def look_up_later(self, kept: Any, next_step: Callable[[], None] | None = None) -> tuple[Round, int]:
        """Adds the lookup whose job lies at job_at to those that this thread has begun; returns its round and number.

        Args:
          kept: has the memory that the lookup reads and writes.
          next_step: called behind all lookups of the round, where this one comes to its end.
        """
        of_round, all_kept = self._round, self._kept
        if next_step is not None:
            self._next_steps.append((len(all_kept), next_step))
        all_kept.append(kept)
        count = len(all_kept)
        if count == MOST_JOBS:
            self.look_up()
        else:
            if count == len(self._places):
                self._places.append(_new_place(count))
            self.found, self.found_at, self.job_at = self._places[count]
        return of_round, count - 1

    def look_up(self) -> None:
        """Does all that is begun, and begins another round.

        Raises:
          What a next step does; those behind it are not taken then.
        """
        kept, done, next_steps = self._kept, self._round, self._next_steps
        self._kept, self._round, self._next_steps = [], [], []
        count = len(kept)
        self.found, self.found_at, self.job_at = self._places[0]
        try:
            are_all_done = gather.answer_all(self._jobs_at, count, self._done_at)
        except BaseException:
            # Told once; the others are not answered by this.
            done += [False] * count
            raise
        if are_all_done:
            done += _ALL_DONE[:count]
        else:
            done += [result == gather.DONE for result in self._done[:count]]
        for number, step in next_steps:
            if done[number]:
                step()


def _new_place(number: int) -> tuple[memoryview, int, int]:
    found: Any = np.zeros((1 + MAX_INPUTS) * COLUMNS, np.int64)
    # A view, for an element of an array takes ten times as long to read; it holds the array.
    return memoryview(found), found.ctypes.data, number * _JOB.size


class ThreadStates(dict[int, ThreadState]):
    """The state of each thread by threading.get_ident(), made when first asked for. Concurrency: any thread."""

    def __missing__(self, thread: int) -> ThreadState:
        state = self[thread] = ThreadState(thread)
        return state
