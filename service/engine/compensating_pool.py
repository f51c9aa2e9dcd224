"""Runs jobs in a few threads of lower priority, and starts one more thread for each job that takes long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from service.engine.low_priority import lower_priority_of_loads

# Seconds after which a running job counts as long, so that another thread takes its place.
LONG_S = 0.2
# Seconds after which a thread without a job ends.
_IDLE_S = 10.0


class CompensatingPool:
    """A pool of daemon threads in which a job that hangs or takes long delays no other job. Concurrency: any thread.

    NOTE: nothing here runs by a clock. While jobs wait, the owner calls tend() again and again.

    Args:
      size: most threads that run jobs at a time, not counting threads whose job takes longer than LONG_S.
      clock: seconds, monotonic.
    """

    def __init__(self, name: str, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._size = size
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        # When each running job began, by the number of its thread.
        self._begun_s: dict[int, float] = {}
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Adds a job, which must not raise, to the end of the queue."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            self._compensate()

    def tend(self) -> bool:
        """Starts threads in place of those whose jobs take long; returns whether jobs still wait for a thread."""
        with self._changed:
            self._compensate()
            return len(self._jobs) > self._idle

    def _compensate(self) -> None:
        missing = len(self._jobs) - self._idle
        if missing <= 0:
            return
        long_since_s = self._clock() - LONG_S
        short = sum(begun_s > long_since_s for begun_s in self._begun_s.values())
        for _ in range(min(missing, self._size - short - self._idle)):
            # The new thread counts as idle until it has a job, so that no second thread is started for this job.
            self._idle += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        lower_priority_of_loads()
        while (job := self._next()) is not None:
            job()
            # The job is dropped before the thread waits: it may hold the last reference to a large object.
            del job

    def _next(self) -> Callable[[], None] | None:
        """Waits for a job; returns None if this thread is one too many, or was idle for long."""
        thread = threading.get_ident()
        with self._changed:
            if self._begun_s.pop(thread, None) is not None:
                self._idle += 1
            while not self._jobs:
                is_over = self._idle > self._size or not self._changed.wait(_IDLE_S)
                if is_over and not self._jobs:
                    self._idle -= 1
                    return None
            self._idle -= 1
            self._begun_s[thread] = self._clock()
            return self._jobs.popleft()
