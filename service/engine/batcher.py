"""Wraps a backend so that requests that arrive at the same time run in one batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from service.engine.batch_concatenation import concatenated, group, num_rows, repeated, rows_of
from service.engine.batch_queue import BatchQueue, Call, Result, Task
from service.engine.batch_scheduler import Scheduler
from service.engine.batching_parameters import BatchingParameters
from service.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotBatchable,
    ServiceError,
)
from service.types import Array, Backend, SignatureSpec, Tensors

_NO_WAIT = [0.0]


class Batcher:
    """A backend that batches runs of another backend. Concurrency: any thread; run() blocks until its batch ends.

    Requests of one signature share a batch when their inputs have equal names, dtypes and inner shapes; their wanted
    outputs may differ. A batch that the backend refuses is run again request by request, so that one bad request does
    not spoil the other requests.

    Source of the contract: tensorflow_serving/batching/batching_session.cc (9d981c5).
    """

    def __init__(
        self,
        backend: Backend,
        signatures: Mapping[str, SignatureSpec],
        *,
        parameters: BatchingParameters,
        scheduler: Scheduler,
        observer: BatchObserver,
    ) -> None:
        self._backend = backend
        self._signatures = signatures
        self._parameters = parameters
        self._scheduler = scheduler
        self._observer = observer
        self._queues = {name: BatchQueue(parameters, partial(self._process, spec)) for name, spec in signatures.items()}

    def run(
        self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...], deadline_s: float | None = None
    ) -> dict[str, Array]:
        """Runs a request in a batch; returns its named outputs, as if it had run alone.

        Args:
          deadline_s: on the scheduler's clock; a late request is not begun.

        Raises:
          InputMismatch: the inputs differ in their number of rows, or the request is larger than any batch.
          Overloaded: too many batches wait already.
          DeadlineExceeded: the request waited too long.
          NotBatchable: an output does not have one row per row of input.
          ServiceError: whatever the backend raises for this request.
        """
        spec = self._signatures[signature_name]
        rows = num_rows(spec, inputs)
        if rows == 0:
            # A request without rows runs alone: it would not fill a batch, and has no row to repeat as padding.
            return self._backend.run(signature_name, inputs, outputs)
        self._observer.arrived(rows=rows)
        queue = self._queues[signature_name]
        call = None
        try:
            queue.check_size(rows)
            if not self._scheduler.begin_alone(queue, rows):
                call = Call(inputs, outputs, rows, self._group(spec, inputs), deadline_s)
                self._scheduler.run(queue, call)
        except ServiceError as error:
            self._observer.rejected(error=error)
            raise
        if call is not None:
            return self._answer(call)
        try:
            return self._run_alone(spec, inputs, outputs, rows)
        finally:
            self._scheduler.end_alone()

    def close(self) -> None:
        """Closes the wrapped backend. No request runs any more, because each request has a lease on the servable."""
        # Breaks the reference cycle of this object and the function of each of its queues, so that the backend's memory
        # is freed without the garbage collector.
        self._queues = {}
        self._backend.close()

    def _group(self, spec: SignatureSpec, inputs: Tensors) -> Hashable:
        return group(spec, inputs, pads=self._parameters.pad_variable_length_inputs)

    def _run_alone(self, spec: SignatureSpec, inputs: Tensors, outputs: tuple[str, ...], rows: int) -> dict[str, Array]:
        total = self._parameters.padded_rows(rows)
        self._observer.processed(requests=1, rows=rows, padding=total - rows, queue_seconds=_NO_WAIT)
        if total > rows:
            inputs = self._merged(spec, [inputs], total - rows)
        return _part(self._backend.run(spec.name, inputs, outputs), outputs, 0, rows, total)

    def _answer(self, call: Call) -> dict[str, Array]:
        if call.error is not None:
            if isinstance(call.error, DeadlineExceeded):
                self._observer.rejected(error=call.error)
            raise _own(call.error) from call.error
        parts = [call.answers[begin] for begin in sorted(call.answers)]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in call.outputs}

    def _process(self, spec: SignatureSpec, tasks: Sequence[Task]) -> Sequence[Result]:
        now_s = self._scheduler.clock()
        rows = sum(task.rows for task in tasks)
        waits = [max(now_s - task.enqueued_s, 0.0) for task in tasks]
        padding = self._parameters.padded_rows(rows) - rows
        self._observer.processed(requests=len(tasks), rows=rows, padding=padding, queue_seconds=waits)
        try:
            return self._run(spec, tasks)
        except InvalidRequest as error:
            return [error] if len(tasks) == 1 else [self._alone(spec, task) for task in tasks]
        except Exception as error:
            return [error] * len(tasks)

    def _alone(self, spec: SignatureSpec, task: Task) -> Result:
        try:
            (result,) = self._run(spec, [task])
        except Exception as error:
            return error
        return result

    def _run(self, spec: SignatureSpec, tasks: Sequence[Task]) -> list[Result]:
        """Runs tasks as one batch; returns each task's outputs, or its NotBatchable error.

        Raises the error of a failed run.
        """
        rows = sum(task.rows for task in tasks)
        total = self._parameters.padded_rows(rows)
        inputs = self._merged(spec, [_inputs(spec, task) for task in tasks], total - rows)
        wanted = {name for task in tasks for name in task.call.outputs}
        outputs = self._backend.run(spec.name, inputs, tuple(name for name in spec.outputs if name in wanted))
        results: list[Result] = []
        begin = 0
        for task in tasks:
            try:
                results.append(_part(outputs, task.call.outputs, begin, task.rows, total))
            except NotBatchable as error:
                results.append(error)
            begin += task.rows
        return results

    def _merged(self, spec: SignatureSpec, requests: list[Tensors], padding: int) -> Tensors:
        if padding:
            # The batch is padded with copies of the first row of its last request, because the graph accepts a row that
            # a client sent.
            requests.append(repeated(spec, rows_of(spec, requests[-1], 0, 1), padding))
        if len(requests) == 1:
            return requests[0]
        return concatenated(spec, requests, pads=self._parameters.pad_variable_length_inputs)


def _inputs(spec: SignatureSpec, task: Task) -> Tensors:
    call = task.call
    return call.inputs if task.rows == call.rows else rows_of(spec, call.inputs, task.begin, task.end)


def _part(outputs: Mapping[str, Array], names: tuple[str, ...], begin: int, rows: int, total: int) -> dict[str, Array]:
    """Returns a task's rows (begin to begin + rows) of the batch's outputs with the given names.

    Raises:
      NotBatchable: an output has not `total` rows, the number of rows of the batch.
    """
    part = {}
    for name in names:
        array = outputs[name]
        if array.ndim == 0:
            raise NotBatchable("Batched output tensor has 0 dimensions")
        if array.shape[0] != total:
            raise NotBatchable(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                "tensors"
            )
        part[name] = array if rows == total else array[begin : begin + rows]
    return part


def _own(error: Exception) -> Exception:
    """Returns a copy of a batch's error for one request, as threads that raise one object share its traceback."""
    return type(error)(error.message) if isinstance(error, ServiceError) else RuntimeError("the batch failed")


class BatchObserver(Protocol):
    """An observer that counts batched requests and batches. Concurrency: any thread; must not raise."""

    def arrived(self, *, rows: int) -> None:
        """Counts, for the metrics, a request and its rows before the request joins a batch."""
        ...

    def processed(self, *, requests: int, rows: int, padding: int, queue_seconds: list[float]) -> None:
        """Counts a batch, with its requests and padding, when it begins to run.

        requests: number of requests, or parts of them, in the batch. rows: their rows. padding: rows added to these.
        queue_seconds: seconds that each of these requests waited.
        """
        ...

    def rejected(self, *, error: Exception) -> None:
        """Counts a request that was refused before it ran: it is too large or too late, or too many batches wait."""
        ...
