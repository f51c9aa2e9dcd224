"""A training with parameter servers: they hold all variables, and the chief and each worker train at their own pace.

Each process builds the same TensorFlow 1 graph and runs it in a session of its own. Every table is split into one part
for each parameter server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from model_export.distribution.cluster import ClusterTask
from model_export.estimator.run_config import RunConfig
from model_export.estimator.training_processes import OneProcess
from model_export.tensorflow_setup import tf

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
        """Serves this parameter server's variables until the chief and all workers have ended."""
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
        """Puts the mark that this process has ended its training; does nothing if it exists, as after a restart."""
        # Read again after a failed call whether the mark is there: a second mark would wait for ever for a place in the
        # queue.
        while not self._sizes_of([self._own])[self._own]:
            self._try(self._put)

    def wait_for(self, names: Iterable[str]) -> None:
        """Waits until each named process has marked its end; logs the names without a mark every 30 seconds."""
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
