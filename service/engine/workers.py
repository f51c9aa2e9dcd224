"""Runs jobs in a pool of threads, with models in turn, and refuses jobs that would wait too long.

A queue without a bound makes all requests wait under overload, until each client has given up. So the pool refuses work
that would not run in time, and drops queued work whose time is over before it costs anything.
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

# A job's function. It is called once, or never if the job was cancelled. With an error, the job's time has passed, and
# the function must only raise or answer the error.
Work = Callable[[ServiceError | None], Any]

# A model's average run time is a moving average, in which the newest run has the weight 1 / _NEWEST. The newest run
# counts as at most twice the average plus _MOST_S, because a single run may wait for a graph to load.
_NEWEST = 4
_MOST_S = 1e-3
# A job fails with Overloaded if it has waited this many times limits.wait_s (the longest expected wait with which jobs
# are admitted) and other jobs wait behind it.
_PATIENCE = 4


class Job(Future[Any]):
    """A job in a pool of threads.

    deadline_s: time on the pool's clock by which the job must have begun; None: no limit.
    """

    def __init__(self, pool: Workers, model: str, work: Work, deadline_s: float | None, queued_s: float) -> None:
        super().__init__()
        self._pool = pool
        self.model = model
        self.work = work
        self.deadline_s = deadline_s
        self.queued_s = queued_s

    def cancel(self) -> bool:
        """Cancels the job unless it has begun, and removes it from the thread pool's queue at once."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._pool.forget(self)
        return is_cancelled


class Workers:
    """A pool of threads with a bounded queue. Concurrency: any thread.

    Args:
      admission: has the limits on waiting, and the observer of refused and waiting requests.
      clock: seconds, monotonic; deadlines are on this clock.
    """

    def __init__(
        self, num_threads: int, *, name: str, admission: Admission, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_threads = num_threads
        self._name = name
        self._limits = admission.limits
        self._observer = admission.observer
        self._clock = clock
        # _waiting: model -> its waiting jobs. _turns: the models with waiting jobs; the next job is the first model's.
        self._waiting: dict[str, deque[Job]] = {}
        self._turns: deque[str] = deque()
        self._num_waiting = 0
        # _started: all threads of the pool. _num_idle: number of the pool's threads that wait for a job.
        self._started: set[threading.Thread] = set()
        self._num_idle = 0
        # Model -> average seconds of a job. Only names of configured models get here, so the dict stays small.
        self._means: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._is_closed = False
        _POOLS.add(self)

    def submit(self, model: str, work: Work, deadline_s: float | None = None) -> Job:
        """Queues a function as a job for the thread pool's threads.

        Raises:
          Overloaded: the job would wait too long, too many jobs wait, or the system can start no thread.
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
        """Removes a cancelled job from the thread pool's queue."""
        with self._lock:
            jobs = self._waiting.get(job.model)
            if jobs is not None and job in jobs:
                jobs.remove(job)
                self._num_waiting -= 1
                if not jobs:
                    self._drop_turn(job.model)

    def close(self) -> None:
        """Closes the pool: cancels all jobs that have not begun; running jobs go on to their end."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify_all()
            left = [job for jobs in self._waiting.values() for job in jobs]
        for job in left:
            job.cancel()

    def join(self) -> None:
        """Waits until all threads of this closed thread pool have ended."""
        with self._lock:
            started = list(self._started)
        for thread in started:
            thread.join()

    @property
    def num_waiting(self) -> int:
        """Number of jobs in the thread pool's queue that no thread has begun."""
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
        # While fewer jobs wait than the pool has threads, the limit on the expected wait refuses no job, however slow
        # jobs are: otherwise a thread would be idle between two jobs. A job's own deadline may still refuse it.
        if wait_s > self._limits.wait_s and self._num_waiting >= self._num_threads:
            return "wait"
        if job.deadline_s is not None and job.queued_s + wait_s > job.deadline_s:
            return "deadline"
        return None

    def _expected_wait_s(self, num_mine: int) -> float:
        # Models take turns: a new job runs after the num_mine waiting jobs of its model, and until it has run, each
        # other model runs at most num_mine + 1 jobs.
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
        """Wakes an idle thread or starts one for a new job; returns False if the pool has no thread and starts none."""
        if self._num_idle:
            # _num_idle is reduced here and not by the woken thread: before that thread runs, more jobs may come, which
            # must wake other threads.
            self._num_idle -= 1
            self._has_work.notify()
        elif len(self._started) < self._num_threads:
            # The pool's threads are daemon threads: at exit the interpreter joins all other threads before it runs
            # _end_all(), and an idle thread of the pool ends only when _end_all() tells it to.
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

    def _next_job(self) -> Job | None:
        """Waits for the thread pool's next job and removes it from the queue; None if the calling thread shall end."""
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
            while (job := self._next_job()) is not None:
                if job.set_running_or_notify_cancel():
                    self._do(job)
                # A thread that waits for the next job would else hold the last one, with its request, and its result or
                # error.
                del job
        finally:
            # The pool forgets a thread even if the thread ended for lack of memory, so that the next submit() can start
            # another one.
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
        # Run times vary, so a job may have waited far longer than was expected when it was admitted: if other jobs wait
        # behind it, it fails with Overloaded.
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
    # The process waits for running jobs at its exit: the interpreter would else free objects that TensorFlow's threads
    # still use.
    pools = list(_POOLS)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


atexit.register(_end_all)
