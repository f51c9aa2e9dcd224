"""Decides when a batch runs, and in which thread: a lone request's own, or one of the scheduler's."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from service.engine.batch_queue import BatchQueue, Call, Result, Task
from service.errors import DeadlineExceeded, NotReady

_LATE = "Run() timeout exceeded while waiting in batching queue"

# Type of a function that starts a thread; its arguments are the thread's name and the function to run.
StartThread = Callable[[str, Callable[[], None]], None]


def start_daemon(name: str, work: Callable[[], None]) -> None:
    """Starts a daemon thread, which does not keep the process alive."""
    threading.Thread(target=work, name=name, daemon=True).start()


class Scheduler:
    """The scheduler of batches: runs at most num_threads batches at a time, from one batch queue after the other.

    A request runs in its own thread if no batch waits and fewer than num_threads batches run: handing the request to
    another thread would cost more than many a graph does.

    Concurrency: any thread. One lock guards the queues; no batch is run under it.

    Args:
      clock: seconds, monotonic; deadlines are on this clock.
      start_thread: replaced by tests that do the threads' work by hand.
    """

    def __init__(
        self,
        num_threads: int,
        *,
        thread_pool_name: str = "batch_threads",
        clock: Callable[[], float] = time.monotonic,
        start_thread: StartThread = start_daemon,
    ) -> None:
        self.clock = clock
        self._num_threads = num_threads
        self._name = thread_pool_name
        self._start_thread = start_thread
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Batch queues that are not empty, in the order in which the scheduler looks for the next ready batch.
        self._waiting: deque[BatchQueue] = deque()
        self._num_running = 0
        self._num_started = 0
        self._num_idle = 0
        # The time at which a sleeping thread of the scheduler wakes up for a due batch; infinity if no thread sleeps
        # with a timeout.
        self._watched_s = math.inf
        self._is_stopped = False

    def begin_alone(self, queue: BatchQueue, rows: int) -> bool:
        """Counts a request as a running batch if it may run at once; returns whether it may, in the calling thread.

        Returns:
          Whether the request may run now; if so, the caller calls end_alone after the run.

        Raises:
          NotReady: the server is stopping.
        """
        with self._lock:
            self._refuse_if_stopped()
            is_alone = self._has_room() and queue.runs_at_once(rows) and not self._has_ready(self.clock())
            self._num_running += is_alone
            return is_alone

    def end_alone(self) -> None:
        """Ends the run of a request that begin_alone() counted as a running batch, so that the next batch may run."""
        with self._lock:
            self._num_running -= 1
            self._wake_one()

    def run(self, queue: BatchQueue, call: Call) -> None:
        """Queues a request, and blocks until its batches have run; the result is in call.answers or call.error.

        call.error is DeadlineExceeded if the call's deadline passed before all its tasks began.

        Raises:
          Overloaded: too many batches wait already.
          NotReady: the server is stopping.
        """
        now_s = self.clock()
        with self._lock:
            self._refuse_if_stopped()
            was_empty = not queue
            queue.add(call, now_s)
            if was_empty:
                self._waiting.append(queue)
            self._wake_one()
        timeout_s = None
        if call.deadline_s is not None:
            # The wait is at most threading.TIMEOUT_MAX, because wait() refuses longer ones: for a client that sets no
            # deadline, grpcio reports a deadline in hundreds of years.
            timeout_s = min(max(call.deadline_s - now_s, 0), threading.TIMEOUT_MAX)
        if not call.done.wait(timeout_s):
            with self._lock:
                if len(call.tasks) > call.running:
                    self._give_up(queue, call, DeadlineExceeded(_LATE))
            # Tasks of the request that run already must end first: they use the servable, which is leased only until
            # run() returns.
            call.done.wait()

    def run_ready(self) -> bool:
        """Runs one ready batch; returns False if no batch is ready, or if num_threads batches run already."""
        with self._lock:
            found = self._next_batch()
        if found is None:
            return False
        self._process(*found)
        return True

    def stop(self) -> None:
        """Makes the scheduler refuse new requests from now on; requests in its batch queues are still run."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()

    def _refuse_if_stopped(self) -> None:
        if self._is_stopped:
            raise NotReady("The server is shutting down.")

    def _has_room(self) -> bool:
        return self._num_running < self._num_threads

    def _has_ready(self, now_s: float) -> bool:
        return any(queue.is_ready(now_s) for queue in self._waiting)

    def _next_batch(self) -> tuple[BatchQueue, list[Task]] | None:
        """Removes the next ready batch from its queue, drops late tasks, and counts it as running; None without one."""
        now_s = self.clock()
        num_tries = len(self._waiting) if self._has_room() else 0
        for _ in range(num_tries):
            queue = self._waiting.popleft()
            tasks: list[Task] = []
            while not tasks and (batch := queue.pop(now_s)) is not None:
                tasks = self._in_time(queue, batch.tasks, now_s)
            if queue:
                self._waiting.append(queue)
            if tasks:
                self._num_running += 1
                for task in tasks:
                    task.call.running += 1
                return queue, tasks
        return None

    def _in_time(self, queue: BatchQueue, tasks: Sequence[Task], now_s: float) -> list[Task]:
        for task in tasks:
            if task.call.is_late(now_s):
                self._end(queue, task, DeadlineExceeded(_LATE))
        return [task for task in tasks if task.call.error is None]

    def _process(self, queue: BatchQueue, tasks: Sequence[Task]) -> None:
        results: Sequence[Result] = []
        try:
            results = queue.process(tasks)
        finally:
            with self._lock:
                self._num_running -= 1
                for i, task in enumerate(tasks):
                    task.call.running -= 1
                    self._end(queue, task, results[i] if i < len(results) else RuntimeError("a batch was lost"))

    def _end(self, queue: BatchQueue, task: Task, result: Result) -> None:
        call = task.call
        call.tasks.remove(task)
        if isinstance(result, Exception):
            self._give_up(queue, call, result)
            return
        call.answers[task.begin] = result
        if not call.tasks:
            call.done.set()

    def _give_up(self, queue: BatchQueue, call: Call, error: Exception) -> None:
        """Ends a request with an error, and removes its tasks that have not begun from the batch queue."""
        if call.done.is_set():
            return
        call.error = call.error or error
        queue.remove(call)
        if not queue and queue in self._waiting:
            self._waiting.remove(queue)
        if not call.running:
            call.done.set()

    def _wake_one(self) -> None:
        """Wakes or starts a thread of the scheduler if a batch waits and fewer than num_threads batches run."""
        if not self._waiting or not self._has_room():
            return
        if self._num_idle:
            self._changed.notify()
        elif self._num_started < self._num_threads:
            self._num_started += 1
            self._start_thread(f"{self._name}_{self._num_started}", self._work)

    def _work(self) -> None:
        with self._lock:
            while self._waiting or not self._is_stopped:
                found = self._next_batch()
                if found is None:
                    self._sleep()
                    continue
                self._wake_one()
                self._lock.release()
                try:
                    self._process(*found)
                finally:
                    self._lock.acquire()

    def _sleep(self) -> None:
        """Waits until a batch queue changes or a batch is due; without a timeout if another thread wakes as early."""
        due_s = min((queue.due_s for queue in self._waiting), default=math.inf) if self._has_room() else math.inf
        timeout_s = None
        if due_s < self._watched_s:
            self._watched_s = due_s
            timeout_s = max(due_s - self.clock(), 0)
        self._num_idle += 1
        self._changed.wait(timeout_s)
        self._num_idle -= 1
        if timeout_s is not None:
            self._watched_s = math.inf
