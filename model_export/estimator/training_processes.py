"""The part of one process in a training: alone, with workers that step together, or with parameter servers.

With MultiWorkerMirroredStrategy each worker holds all variables and runs its own TensorFlow 1 session. Its graph calls
Python functions that exchange gradients with the other workers: TensorFlow's strategy transports them, outside of the
session. All workers add the gradients up in the same order, so their variables stay equal to the bit.

Parameter servers hold all variables, and the chief and each worker train at their own pace: each builds the same
TensorFlow 1 graph and runs it in a session of its own. Every table is split into one part for each parameter server.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from model_export.distribution.cluster import ClusterTask
from model_export.estimator.run_config import RunConfig
from model_export.tensorflow_setup import tf
from service.types import Array


class OneProcess:
    """An estimator's training in this process alone; the subclasses of `OneProcess` train in several processes.

    is_chief: whether this process writes checkpoints and summaries.
    parts: number of variables into which each table is split.
    shares_variables: whether several processes update the same variables.
    """

    is_chief = True
    parts = 1
    shares_variables = False

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def placing(self) -> AbstractContextManager[None]:
        """Returns a context manager; its `with` block must add the variables and operations of the training graph."""
        return nullcontext()

    def averaging(self) -> AbstractContextManager[None]:
        """Returns a context manager: optimizers that model_fn calls in its block apply the workers' mean gradients."""
        return nullcontext()

    def joined(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Returns the tables' gradients of all workers together; None, for a table without a gradient, stays None."""
        return gradients

    def session_arguments(self) -> dict[str, Any]:
        return {"config": self._config.session_config}

    def hooks(self) -> list[Any]:
        return []

    def finish_steps(self) -> None:
        """Waits for the other processes, or tells them that the steps have ended; call it in the session, before the
        last checkpoint.
        """

    def finish(self) -> None:
        """Tells other processes of the training that this process has ended; call it after the last checkpoint."""


_OPTIMIZER = tf.compat.v1.train.Optimizer


class WorkerExchange:
    """Exchange of arrays between the workers of a TensorFlow distribution strategy.

    All workers must call the same methods in the same order; every call waits for all workers. Concurrency: one caller
    at a time.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._functions: dict[tuple[int, Any], Any] = {}
        # The callers' threads build or run TensorFlow 1 graphs; in a thread of its own, TensorFlow runs eagerly.
        self._thread = ThreadPoolExecutor(1, "worker-exchange")

    def of_all(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """Sends this worker's arrays to all workers of the training; returns a list of arrays for each worker.

        The arrays of different workers may differ in their first dimension only.

        Raises:
          StopIteration: a worker has left; TensorFlow turns this into OutOfRangeError, which ends a training.
        """
        counts = np.array([len(array) for array in arrays], np.int64)
        payload = b"".join([counts.tobytes(), *(np.ascontiguousarray(array).tobytes() for array in arrays)])
        heads = self._gathered(np.array([0, len(payload)], np.int64))
        if heads[:, 0].any():
            raise StopIteration("another worker has ended the training")
        # _gather() makes a tf.function for each length of an array. Lengths are rounded up to powers of two, so that
        # there are few functions.
        padded = np.zeros(1 << (int(heads[:, 1].max()) - 1).bit_length(), np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        return [_arrays(row.tobytes(), arrays) for row in self._gathered(padded.view(np.int32))]

    def leave(self) -> None:
        self._gathered(np.array([1, 0], np.int64))

    def _gathered(self, array: Array) -> Array:
        gathered: Array = self._thread.submit(self._gather, array).result()
        return gathered

    def _gather(self, array: Array) -> Any:
        key = (len(array), array.dtype)
        if key not in self._functions:
            strategy = self._strategy

            def gather(part: Any) -> Any:
                return tf.distribute.get_replica_context().all_gather(part[tf.newaxis], axis=0)

            signature = [tf.TensorSpec(array.shape, array.dtype)]
            self._functions[key] = tf.function(lambda part: strategy.run(gather, (part,)), signature)
        return self._functions[key](tf.constant(array)).numpy()


def _arrays(data: bytes, like: Sequence[Array]) -> list[Array]:
    counts = np.frombuffer(data, np.int64, len(like))
    found, at = [], counts.nbytes
    for array, count in zip(like, counts, strict=True):
        shape = (int(count), *array.shape[1:])
        found.append(np.frombuffer(data, array.dtype, int(np.prod(shape)), at).reshape(shape))
        at += found[-1].nbytes
    return found


class MirroredWorkers(OneProcess):
    """The part of one worker in a training whose steps all workers make together."""

    def __init__(self, config: RunConfig, task: ClusterTask) -> None:
        super().__init__(config)
        self._exchange = WorkerExchange(config.train_distribute)
        self._workers = task.number_of_workers
        self.is_chief = task.is_chief
        self._averaged: list[Any] = []

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Makes TensorFlow 1 optimizers that this thread calls in the `with` block apply the mean gradient of all
        workers.

        Raises:
          ValueError: no TensorFlow 1 optimizer applied gradients in the `with` block.
        """
        original, thread = _OPTIMIZER.apply_gradients, threading.get_ident()

        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **named: Any) -> Any:
            if threading.get_ident() == thread:
                grads_and_vars = self._mean(list(grads_and_vars))
            return original(optimizer, grads_and_vars, *args, **named)

        _OPTIMIZER.apply_gradients = apply_gradients
        try:
            yield
        finally:
            _OPTIMIZER.apply_gradients = original
        if not self._averaged:
            raise ValueError(
                "model_fn applied no gradients by a tf.compat.v1.train.Optimizer; with train_distribute="
                "MultiWorkerMirroredStrategy, only such an optimizer gets the mean gradient of all workers"
            )

    def joined(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Concatenates each table's row numbers and gradients of all workers; divides gradients by the worker count."""
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return gradients
        flat = []
        for gradient in given:
            is_rows = isinstance(gradient, tf.IndexedSlices)
            rows = gradient.indices if is_rows else tf.range(tf.shape(gradient)[0])
            flat += [tf.cast(rows, tf.int64), gradient.values if is_rows else gradient]
        # Every worker exchanges arrays twice in a step, and all workers must do so in the same order: first the mean
        # gradients of model_fn's optimizers, then the gradients of the tables.
        with tf.control_dependencies(self._averaged):
            results = tf.numpy_function(self._joined, flat, [tensor.dtype for tensor in flat])
        pairs = iter(zip(flat[1::2], results[::2], results[1::2], strict=True))
        joined = []
        for gradient in gradients:
            if gradient is not None:
                before, rows, values = next(pairs)
                rows.set_shape([None])
                values.set_shape([None, *before.shape[1:]])
                gradient = tf.IndexedSlices(values, rows)
            joined.append(gradient)
        return joined

    def session_arguments(self) -> dict[str, Any]:
        arguments = super().session_arguments()
        return arguments if self.is_chief else {**arguments, "save_summaries_steps": None, "save_summaries_secs": None}

    def hooks(self) -> list[Any]:
        return [_SameStart(self._exchange, is_chief=self.is_chief)]

    def finish_steps(self) -> None:
        self._exchange.leave()

    def _mean(self, grads_and_vars: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        given = [tf.convert_to_tensor(gradient) for gradient, _ in grads_and_vars if gradient is not None]
        results = tf.numpy_function(self._means, given, [tensor.dtype for tensor in given])
        self._averaged += results
        for mean, tensor in zip(results, given, strict=True):
            mean.set_shape(tensor.shape)
        left = iter(results)
        return [(None if gradient is None else next(left), variable) for gradient, variable in grads_and_vars]

    def _means(self, *gradients: Array) -> list[Array]:
        found = self._exchange.of_all([gradient.reshape(1, -1) for gradient in gradients])
        means = []
        for number, gradient in enumerate(gradients):
            total = sum((worker[number] for worker in found[1:]), start=found[0][number])
            means.append((total / np.asarray(self._workers, gradient.dtype)).reshape(gradient.shape))
        return means

    def _joined(self, *arrays: Array) -> list[Array]:
        found = self._exchange.of_all(arrays)
        joined = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        return [part / part.dtype.type(self._workers) if number % 2 else part for number, part in enumerate(joined)]


class _SameStart(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook that copies the chief's variables to the workers whose variables differ, once the session is made."""

    def __init__(self, exchange: WorkerExchange, *, is_chief: bool) -> None:
        self._exchange, self._is_chief = exchange, is_chief
        self._variables: list[Any] = []

    def begin(self) -> None:
        self._variables = tf.compat.v1.global_variables()

    def after_create_session(self, session: Any, coord: Any) -> None:
        checksums = [zlib.crc32(session.run(variable).tobytes()) for variable in self._variables]
        found = self._exchange.of_all([np.array([[self._is_chief, *checksums]], np.int64)])
        workers = np.concatenate([rows for (rows,) in found])
        is_same = (workers == workers[workers[:, 0] == 1][0]).all(axis=0)[1:]
        for variable, same in zip(self._variables, is_same, strict=True):
            if not same:
                value = session.run(variable)
                sent = value.reshape(-1) if self._is_chief else value.reshape(-1)[:0]
                of_chief = np.concatenate([flat for (flat,) in self._exchange.of_all([sent])])
                variable.load(of_chief.reshape(value.shape), session)


_LOGGER = logging.getLogger(__name__)
_POLL_S = 0.2
_RETRY_S = 1.0
_LOG_S = 30.0


class ParameterServers(OneProcess):
    """The part of one process in a training with parameter servers; starts TensorFlow's server of this process."""

    shares_variables = True

    def __init__(self, config: RunConfig, task: ClusterTask) -> None:
        super().__init__(config)
        self._task = task
        self._spec = tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in task.cluster.items()})
        self._server = tf.distribute.Server(self._spec, job_name=task.kind, task_index=task.index, protocol="grpc")
        self._marks = _EndMarks(self._server.target, task)
        self.is_chief = task.is_chief
        self.parts = len(task.cluster["ps"])

    def placing(self) -> AbstractContextManager[None]:
        """Returns a context manager that places variables on the parameter servers by turns, and all else on this
        process.
        """
        setter = tf.compat.v1.train.replica_device_setter(worker_device=self._device(), cluster=self._spec)
        device: AbstractContextManager[None] = tf.compat.v1.device(setter)
        return device

    def session_arguments(self) -> dict[str, Any]:
        config = tf.compat.v1.ConfigProto()
        if self._config.session_config is not None:
            config.CopyFrom(self._config.session_config)
        if not config.device_filters:
            # Without these device filters, each session of this process would wait until all other workers run.
            config.device_filters.extend(["/job:ps", self._device()])
        return {"config": config, "master": self._server.target, "is_chief": self.is_chief}

    def finish_steps(self) -> None:
        if self.is_chief:
            self._marks.wait_for(self._names("worker"))

    def finish(self) -> None:
        self._marks.put()

    def serve(self) -> None:
        self._marks.wait_for([*self._names("chief"), *self._names("worker")])
        if self._task.index:
            self._marks.put()
        else:
            # Parameter server 0 ends last, because it holds the end marks, which the other parameter servers read.
            self._marks.wait_for(self._names("ps")[1:])

    def _device(self) -> str:
        return f"/job:{self._task.kind}/task:{self._task.index}"

    def _names(self, kind: str) -> list[str]:
        return [f"{kind}_{index}" for index in range(len(self._task.cluster.get(kind, ())))]


class _EndMarks:
    """End marks of the training's processes that have ended: one queue for each process, on parameter server 0."""

    def __init__(self, target: str, task: ClusterTask) -> None:
        self._own = f"{task.kind}_{task.index}"
        self._graph = tf.Graph()
        self._sizes, self._target = {}, target
        with self._graph.as_default(), tf.device("/job:ps/task:0"):
            for kind, addresses in task.cluster.items():
                for index in range(len(addresses)):
                    name = f"{kind}_{index}"
                    queue = tf.queue.FIFOQueue(1, tf.bool, [()], shared_name=f"ended_{name}")
                    self._sizes[name] = queue.size()
                    if name == self._own:
                        self._put = queue.enqueue(True)
        filters = ["/job:ps/task:0", f"/job:{task.kind}/task:{task.index}"]
        self._config = tf.compat.v1.ConfigProto(device_filters=filters)

    def put(self) -> None:
        # Read again after a failed call whether the mark is there: a second mark would wait for ever for a place in the
        # queue.
        while not self._sizes_of([self._own])[self._own]:
            self._try(self._put)

    def wait_for(self, names: Iterable[str]) -> None:
        missing, log_s = list(names), time.monotonic() + _LOG_S
        while missing:
            sizes = self._sizes_of(missing)
            missing = [name for name, size in sizes.items() if not size]
            if missing and time.monotonic() >= log_s:
                _LOGGER.info("waiting for the end of %s", ", ".join(missing))
                log_s += _LOG_S
            time.sleep(_POLL_S if missing else 0)

    def _sizes_of(self, names: Iterable[str]) -> dict[str, int]:
        sizes: dict[str, int] | None = None
        while sizes is None:
            sizes = self._try({name: self._sizes[name] for name in names})
        return sizes

    def _try(self, fetches: Any) -> Any:
        try:
            with tf.compat.v1.Session(self._target, self._graph, self._config) as session:
                return session.run(fetches)
        # gRPC may have sent the request twice, which TensorFlow refuses, or parameter server 0 may be about to start
        # again.
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            _LOGGER.info("parameter server 0 gives no answer: %s", str(error.message).splitlines()[-1])
            time.sleep(_RETRY_S)
            return None
