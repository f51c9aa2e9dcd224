"""Makes TensorFlow's strategies for a cluster, and runs the processes that only serve a coordinator."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from model_export.distribution.cluster import ClusterTask
from model_export.tensorflow_setup import tf


class TablePartitioner:
    """A partitioner of variables that splits only tables, into one shard for each parameter server.

    A tower's matrix is small, and N parts of a matrix would cost N requests in each step, so it stays whole.
    """

    def __init__(self, shards: int) -> None:
        self._split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards)
        self._is_on = False

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the numbers of parts, one for each axis, into which a new variable is split."""
        parts: list[int] = self._split(shape, dtype, axis) if self._is_on and len(shape) else [1] * len(shape)
        return parts

    @contextmanager
    def splitting(self) -> Iterator[None]:
        """Makes this partitioner split the variables that the `with` block creates."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False


def multi_worker_strategy(task: ClusterTask) -> Any:
    """Makes a MultiWorkerMirroredStrategy; call it before TensorFlow runs any operation. Waits for all other workers.

    The collective operations use gRPC, because NCCL needs GPUs.
    """
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(_resolver(task), options)


def parameter_server_strategy(task: ClusterTask) -> tuple[Any, TablePartitioner]:
    """Makes the chief's ParameterServerStrategy and its TablePartitioner; waits for workers and parameter servers."""
    partitioner = TablePartitioner(len(task.cluster["ps"]))
    return tf.distribute.ParameterServerStrategy(_resolver(task), variable_partitioner=partitioner), partitioner


def serve_coordinator(task: ClusterTask) -> None:
    """Runs the operations that the chief sends to this worker or parameter server, until SIGTERM or SIGINT."""
    server = tf.distribute.Server(_spec(task), job_name=task.kind, task_index=task.index, protocol="grpc", start=True)
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    signal.sigwait(stops)
    del server


def _resolver(task: ClusterTask) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        _spec(task), task_type=task.kind, task_id=task.index, rpc_layer="grpc"
    )


def _spec(task: ClusterTask) -> Any:
    return tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in task.cluster.items()})
