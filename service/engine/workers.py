"""Threads that take work in turns from the models that have some, from a queue that refuses what would wait too long.

A queue without a bound turns overload into waiting: every request is answered, and each after its client gave up. So
nothing is taken in that would not be run in time, and what can not be run in time any more is dropped before it costs
anything.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from service.engine.admission import Admission
from service.engine.admission_limits import Reason, has_share
from service.errors import DeadlineExceeded, NotReady, Overloaded, ServiceError

# Work is called once, or never where its future was cancelled. With an error it must do nothing but raise that, or
# answer it: its time to run has passed.
Work = Callable[[ServiceError | None], Any]

# How much of the newest run goes into the mean, and what it counts for at most: one run may wait for a graph to load.
_NEWEST = 4
_MOST_S = 1e-3
# How many times the longest wait that is expected of any work it may really wait.
_PATIENCE = 4


class Job(Future[Any]):
    """Work that waits. deadline_s: on the pool's clock, or None."""

    def __init__(self, pool: Workers, model: str, work: Work, deadline_s: float | None, queued_s: float) -> None:
        super().__init__()
        self._pool = pool
        self.model = model
        self.work = work
        self.deadline_s = deadline_s
        self.queued_s = queued_s

    def cancel(self) -> bool:
        """Cancels it unless it has begun; its place in the queue is free at once."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._pool.forget(self)
        return is_cancelled


class Workers:
    """A pool of threads. Concurrency: any thread.

    Args:
      admission: whose limits on waiting hold, and whose observer is told.
      clock: seconds, monotonic; what deadlines are measured on.
    """

    def __init__(
        self, num_threads: int, *, name: str, admission: Admission, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_threads = num_threads
        self._name = name
        self._limits = admission.limits
        self._observer = admission.observer
        self._clock = clock
        self._waiting: dict[str, deque[Job]] = {}
        # Models that have work, the one whose turn it is first.
        self._turns: deque[str] = deque()
        self._num_waiting = 0
        # Threads that there are, and those of them that wait for a job.
        self._started: set[threading.Thread] = set()
        self._num_idle = 0
        # Mean seconds of a run, by model; bounded, as only configured models have names here.
        self._means: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._is_closed = False
        _POOLS.add(self)

    def submit(self, model: str, work: Work, deadline_s: float | None = None) -> Job:
        """Queues work.

        Raises:
          Overloaded: it would wait too long, too much waits, or the system gives no thread.
          NotReady: the pool is closed.
        """
        job = Job(self, model, work, deadline_s, self._clock())
        with self._lock:
            if self._is_closed:
                raise NotReady("The server is shutting down.")
            reason = self._reason_to_refuse(job)
            if reason is None and not self._is_thread_coming():
                reason = "threads"
            if reason is None:
                self._add(job)
                return job
            num_waiting = self._num_waiting
        self._observer.refused(model, reason)
        raise Overloaded(f"The server is overloaded: {num_waiting} requests wait for a thread. Try again later.")

    def forget(self, job: Job) -> None:
        """Takes out a job that was cancelled."""
        with self._lock:
            jobs = self._waiting.get(job.model)
            if jobs is not None and job in jobs:
                jobs.remove(job)
                self._num_waiting -= 1
                if not jobs:
                    self._drop_turn(job.model)

    def close(self) -> None:
        """Lets running work end and cancels what has not begun."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify_all()
            left = [job for jobs in self._waiting.values() for job in jobs]
        for job in left:
            job.cancel()

    def join(self) -> None:
        """Waits for the threads of a closed pool."""
        with self._lock:
            started = list(self._started)
        for thread in started:
            thread.join()

    @property
    def num_waiting(self) -> int:
        """How many jobs wait."""
        return self._num_waiting

    def _reason_to_refuse(self, job: Job) -> Reason | None:
        if self._num_waiting + len(self._started) - self._num_idle < self._num_threads:
            return None
        mine = self._waiting.get(job.model)
        num_mine = len(mine) if mine else 0
        free = self._limits.queued - self._num_waiting
        if free <= 0 or not has_share(num_mine, free):
            return "queue"
        wait_s = self._expected_wait_s(num_mine)
        # As many as there are threads may wait however slow their runs are: else a thread would idle between two.
        if wait_s > self._limits.wait_s and self._num_waiting >= self._num_threads:
            return "wait"
        if job.deadline_s is not None and job.queued_s + wait_s > job.deadline_s:
            return "deadline"
        return None

    def _expected_wait_s(self, num_mine: int) -> float:
        # In turns: of each other model no more is run before this one than of its own.
        turns = num_mine + 1
        means = self._means
        total_s = sum(min(len(jobs), turns) * means.get(model, 0.0) for model, jobs in self._waiting.items())
        return total_s / self._num_threads

    def _add(self, job: Job) -> None:
        jobs = self._waiting.get(job.model)
        if jobs is None:
            jobs = self._waiting[job.model] = deque()
            self._turns.append(job.model)
        jobs.append(job)
        self._num_waiting += 1

    def _is_thread_coming(self) -> bool:
        """Wakes or starts a thread where there is one to be had; False where nobody would ever take a job."""
        if self._num_idle:
            # Counted here: by the time it runs, others may have been woken.
            self._num_idle -= 1
            self._has_work.notify()
        elif len(self._started) < self._num_threads:
            # No thread that the interpreter's end would wait for by itself: it can not tell idle ones to end.
            thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._started)}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                pass
            else:
                self._started.add(thread)
        return bool(self._started)

    def _drop_turn(self, model: str) -> None:
        del self._waiting[model]
        self._turns.remove(model)

    def _take(self) -> Job | None:
        """Takes out the next job, once there is one; None ends the thread."""
        with self._lock:
            while not self._turns:
                if self._is_closed:
                    return None
                self._num_idle += 1
                self._has_work.wait()
            model = self._turns[0]
            jobs = self._waiting[model]
            job = jobs.popleft()
            self._num_waiting -= 1
            if jobs:
                self._turns.rotate(-1)
            else:
                self._drop_turn(model)
            return job

    def _run(self) -> None:
        try:
            while (job := self._take()) is not None:
                if job.set_running_or_notify_cancel():
                    self._do(job)
        finally:
            # Also where memory ran out: another takes its place then.
            with self._lock:
                self._started.remove(threading.current_thread())

    def _do(self, job: Job) -> None:
        started_s = self._clock()
        waited_s = started_s - job.queued_s
        error = self._why_late(job, started_s, waited_s)
        try:
            result = job.work(error)
        except BaseException as caught:
            job.set_exception(caught)
        else:
            job.set_result(result)
        if error is None:
            self._observer.waited(job.model, waited_s)
            self._learn(job.model, self._clock() - started_s)

    def _why_late(self, job: Job, now_s: float, waited_s: float) -> ServiceError | None:
        if job.deadline_s is not None and now_s >= job.deadline_s:
            self._observer.refused(job.model, "deadline")
            return DeadlineExceeded("The deadline passed while the request waited for a thread.")
        # Runs vary: what was taken in is kept for a while longer.
        if waited_s > _PATIENCE * self._limits.wait_s and self._num_waiting:
            self._observer.refused(job.model, "wait")
            return Overloaded(f"The server is overloaded: the request waited {waited_s:.3f} s for a thread.")
        return None

    def _learn(self, model: str, run_s: float) -> None:
        mean_s = self._means.get(model, 0.0)
        with self._lock:
            self._means[model] = mean_s + (min(run_s, 2 * mean_s + _MOST_S) - mean_s) / _NEWEST


_POOLS: weakref.WeakSet[Workers] = weakref.WeakSet()


def _end_all() -> None:
    # What runs, runs to its end: the interpreter's own would pull the ground from under what is in TensorFlow.
    pools = list(_POOLS)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


atexit.register(_end_all)
