"""Queues the requests of one signature, and gathers them into batches for the batch scheduler.

Source of the limits and texts: tensorflow/core/kernels/batching_util/shared_batch_scheduler.h (TensorFlow 2.21), Queue.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from service.engine.batching_parameters import BatchingParameters
from service.errors import InputMismatch, Overloaded
from service.types import Array, Tensors


@dataclass(slots=True, eq=False)
class Call:
    """A request in a batch queue, from its arrival until the last of its tasks (parts that run in one batch) ends.

    group: requests of equal groups may share a batch.
    deadline_s: on the scheduler's clock; None: the request waits for ever.
    answers: the outputs of ended tasks, by the row at which each task begins.
    error: the first error of a task.
    tasks: the tasks that have not ended. running: how many of these tasks have begun.
    done: set when no task is left.
    """

    inputs: Tensors
    outputs: tuple[str, ...]
    rows: int
    group: Hashable
    deadline_s: float | None = None
    answers: dict[int, dict[str, Array]] = field(default_factory=dict)
    error: Exception | None = None
    tasks: list[Task] = field(default_factory=list)
    running: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def is_late(self, now_s: float) -> bool:
        """Says whether the deadline of this batched request has passed at now_s."""
        return self.deadline_s is not None and now_s >= self.deadline_s


@dataclass(slots=True, eq=False)
class Task:
    """A part of a request that runs in one batch: its rows from begin to end."""

    call: Call
    begin: int
    end: int
    enqueued_s: float

    @property
    def rows(self) -> int:
        """The number of the request's rows that this task runs; a task is a request's part in one batch."""
        return self.end - self.begin


# Type of the result of a task (a request's part in a batch): its outputs by name, or the error that ended it.
Result = dict[str, Array] | Exception
# Type of the function that runs a batch's tasks; it returns the result of each task in order, and never raises.
Process = Callable[[Sequence[Task]], Sequence[Result]]


@dataclass(slots=True, eq=False)
class Batch:
    """A batch: tasks of one group that run together.

    Requests join it while it is open: until the group's next batch begins.
    """

    group: Hashable
    due_s: float
    tasks: list[Task] = field(default_factory=list)
    rows: int = 0
    is_open: bool = True


class BatchQueue:
    """The queue of one signature's waiting batches, the oldest first. Concurrency: under its scheduler's lock.

    Each group has an open batch of its own, but all groups share one limit on waiting batches: clients decide by their
    inputs how many groups there are.
    """

    def __init__(self, parameters: BatchingParameters, process: Process) -> None:
        self.process = process
        self._parameters = parameters
        self._batches: deque[Batch] = deque()
        self._open: dict[Hashable, Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def runs_at_once(self, rows: int) -> bool:
        """Says whether a request may run at once: no batch waits, and the request's rows alone make a ready batch."""
        full = self._parameters.batch_rows
        return not self._batches and (rows == full or (rows < full and self._parameters.batch_timeout_micros == 0))

    def check_size(self, rows: int) -> None:
        """Raises InputMismatch if a request has more rows than max_batch_size."""
        if rows > self._parameters.max_batch_size:
            raise InputMismatch(
                f"Task size {rows} is larger than maximum input batch size {self._parameters.max_batch_size}"
            )

    def add(self, call: Call, now_s: float) -> None:
        """Adds a request to the open batch of its group as one task; a split request becomes tasks of several batches.

        Raises:
          Overloaded: the limit on waiting batches is reached.
        """
        full = self._parameters.batch_rows
        last = self._open.get(call.group)
        free_rows = full - last.rows if last is not None else 0
        self._check_room(call, last)
        begin = 0
        while begin < call.rows:
            rows = call.rows - begin
            if self._parameters.enable_large_batch_splitting:
                rows = min(rows, free_rows or full)
            if last is None or rows > free_rows:
                last, free_rows = self._begin_batch(call.group, now_s), full
            task = Task(call, begin, begin + rows, now_s)
            call.tasks.append(task)
            last.tasks.append(task)
            last.rows += rows
            free_rows -= rows
            begin += rows

    def pop(self, now_s: float) -> Batch | None:
        """Removes and returns the queue's first batch that is full, due, or closed by one of its group; else None."""
        for batch in self._batches:
            if self._is_ready(batch, now_s):
                self._drop(batch)
                return batch
        return None

    def is_ready(self, now_s: float) -> bool:
        """Says whether a batch in the queue is ready to run, so that pop() would return it."""
        return any(self._is_ready(batch, now_s) for batch in self._batches)

    @property
    def due_s(self) -> float:
        """The time at which the next waiting batch must run, full or not; infinity if no batch waits."""
        return min((batch.due_s for batch in self._batches), default=math.inf)

    def remove(self, call: Call) -> None:
        """Removes a request's tasks that have not begun from the waiting batches."""
        for batch in [batch for batch in self._batches if any(task.call is call for task in batch.tasks)]:
            kept = [task for task in batch.tasks if task.call is not call]
            call.tasks[:] = [task for task in call.tasks if task not in batch.tasks]
            batch.tasks[:] = kept
            batch.rows = sum(task.rows for task in kept)
            if not kept:
                self._drop(batch)

    def _begin_batch(self, group: Hashable, now_s: float) -> Batch:
        before = self._open.get(group)
        if before is not None:
            before.is_open = False
        batch = Batch(group, now_s + self._parameters.batch_timeout_s)
        self._open[group] = batch
        self._batches.append(batch)
        return batch

    def _drop(self, batch: Batch) -> None:
        self._batches.remove(batch)
        if batch.is_open:
            del self._open[batch.group]

    def _is_ready(self, batch: Batch, now_s: float) -> bool:
        return not batch.is_open or batch.rows >= self._parameters.batch_rows or now_s >= batch.due_s

    def _check_room(self, call: Call, last: Batch | None) -> None:
        most, full = self._parameters.max_waiting_batches, self._parameters.batch_rows
        if not self._parameters.enable_large_batch_splitting:
            if len(self._batches) >= most and (last is None or last.rows + call.rows > full):
                raise Overloaded(
                    "The batch scheduling queue to which this task was submitted is full; currently "
                    f"{len(self._batches)} batches enqueued and max_enqueued_batches is {most}"
                )
            return
        # If the request's group has no open batch, the request opens a new batch, which this check counts as
        # one more waiting batch.
        waiting, begun = (len(self._batches), last.rows) if last is not None else (len(self._batches) + 1, 0)
        capacity = max(0, (most - waiting) * full + full - begun)
        if call.rows > capacity:
            raise Overloaded(
                "The batch scheduling queue to which this task was submitted is full; task size is "
                f"{call.rows} but scheduling capacity is only {capacity} (num_enqueued_batches={waiting}, "
                f"max_enqueued_batches={most}, open_batch_size={begun}, max_execution_batch_size={full})"
            )
