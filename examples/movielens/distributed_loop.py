"""The demo's training loop in several processes: workers that step together, or a chief that sends steps to workers.

Every process builds the same examples from the same data. Checkpoints lie in a folder that all processes share.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from model_export.distribution.cluster import ClusterTask
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from movielens.examples import Examples
from movielens.loop import Checkpoints, Trainer, feature_ids
from movielens.model import RatingTower, feature_config
from movielens.rating_model import TrainConfig
from movielens.sharded_tables import DistinctRows, ShardedTable


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


def serve_coordinator(task: ClusterTask) -> None:
    """Runs the operations that the chief sends to this worker or parameter server, until SIGTERM or SIGINT."""
    server = tf.distribute.Server(_spec(task), job_name=task.kind, task_index=task.index, protocol="grpc", start=True)
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    signal.sigwait(stops)
    del server


def _spec(task: ClusterTask) -> Any:
    return tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in task.cluster.items()})


class DistributedTrainer(Trainer):
    """Trainer of the rating model in several processes. Concurrency: one caller at a time.

    Args:
      folder: contains the checkpoints; the same folder for all processes.
    """

    def __init__(self, spec: ModelSpec, config: TrainConfig, *examples: Examples, task: ClusterTask, **rest: Any):
        # TensorFlow accepts a strategy of several workers only before it has run an operation.
        self._task = task
        self._splitting: Any = nullcontext()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            _spec(task), task_type=task.kind, task_id=task.index, rpc_layer="grpc"
        )
        # Both strategies wait for all other processes.
        if config.distribution == "multi_worker":
            # The collective operations use gRPC, because NCCL needs GPUs.
            options = tf.distribute.experimental.CommunicationOptions(
                implementation=tf.distribute.experimental.CommunicationImplementation.RING
            )
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        else:
            partitioner = TablePartitioner(len(task.cluster["ps"]))
            self._strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
            self._splitting = partitioner.splitting()
        super().__init__(spec, config, *examples, **rest)
        share = -(-self._batch_size // self._strategy.num_replicas_in_sync)
        self._most_rows = DistinctRows.most(spec, share)
        self._remote_step = tf.function(self._remote_step_eagerly, autograph=False, reduce_retracing=True)
        self._wait_for_all = tf.function(self._wait_for_all_eagerly, autograph=False)
        self._coordinator = None
        if config.distribution == "parameter_server":
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)

    def _build(self, folder: Path, **ratings: Any) -> None:
        tf.keras.utils.set_random_seed(self._config.seed)
        with self._strategy.scope():
            self.model = ShardedRatingModel(self._spec, self._config, splitting=self._splitting, **ratings)
            self._dense_optimizer = tf.keras.optimizers.legacy.Adam(self._config.dense_learning_rate)
            self._dense_optimizer._create_all_weights(self.model.tower.trainable_variables)
        accumulators = tf.Module()
        accumulators.tables = {name: table.accumulator for name, table in self.model.sharded.items()}
        self._checkpoints = Checkpoints(folder, self.model.saved, accumulators, self._dense_optimizer)

    def save(self, epoch: int) -> None:
        """Writes a checkpoint after this epoch if this process is the chief; workers that step together wait for the
        chief.
        """
        if self._task.is_chief:
            self._checkpoints.save(epoch)
        if self._config.distribution == "multi_worker":
            # A worker must not end while the chief writes the checkpoint: the end of a worker stops the chief.
            self._wait_for_all()

    def _trained(self, epoch: int) -> float:
        # Workers that step together compute the gradient of their shares of each batch. Otherwise the chief sends each
        # batch to whichever worker is free; a worker's gradients may be some steps old.
        if self._coordinator is None:
            return super()._trained(epoch)
        tensors = {name: tensor.numpy() for name, tensor in self._epoch_tensors(epoch).items()}
        losses = []
        for step in range(self.steps_per_epoch):
            rows = slice(step * self._batch_size, (step + 1) * self._batch_size)
            batch = {name: tensor[rows] for name, tensor in tensors.items()}
            seed = np.array([self._config.seed, epoch * self.steps_per_epoch + step], np.int64)
            losses.append(self._coordinator.schedule(self._remote_step, args=(batch, seed)))
        self._coordinator.join()
        total = float(sum(float(loss.fetch()) for loss in losses))
        self._on_steps(self.steps_per_epoch, total / self.steps_per_epoch)
        return total

    def _run_steps_eagerly(self, tensors: dict[str, Any], seed: Any, first: Any, steps: Any) -> Any:
        replicas = self._strategy.num_replicas_in_sync

        def replica_step(step: Any) -> Any:
            own = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.range(own, self._batch_size, replicas)
            batch = {name: tf.gather(tensor, step * self._batch_size + rows) for name, tensor in tensors.items()}
            return self._step(batch, seed + [0, tf.cast(step, tf.int64)], (self._batch_size, rows))

        def body(step: Any, total: Any) -> tuple[Any, Any]:
            losses = self._strategy.run(replica_step, (step,))
            return step + 1, total + self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        # parallel_iterations=1 runs steps one after another. If two steps ran at once, workers could not tell apart the
        # same collective operation of the two steps.
        start = (first, tf.constant(0.0))
        return tf.while_loop(lambda step, _: step < first + steps, body, start, parallel_iterations=1)[1]

    def _wait_for_all_eagerly(self) -> Any:
        ones = self._strategy.run(lambda: tf.constant(1.0))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)

    def _remote_step_eagerly(self, batch: dict[str, Any], seed: Any) -> Any:
        return self._strategy.run(self._step, (batch, seed))

    def _step(self, batch: dict[str, Any], seed: Any, share: tuple[int, Any] | None = None) -> Any:
        dense = list(self.model.tower.trainable_variables)
        distinct, rows = self.model.rows(feature_ids(batch, self._spec))
        with tf.GradientTape() as tape:
            tape.watch(rows)
            vectors = self.model.vectors(distinct, rows)
            error = self.model.tower(vectors, self._config.dropout, seed, share) - batch["rating"]
            # The sum of squared errors is divided by the size of the whole batch: if workers share a batch, the sum of
            # their losses is the batch's mean squared error.
            loss = tf.reduce_sum(tf.square(error)) / self._batch_size
        of_rows, of_dense = tape.gradient(loss, (rows, dense))
        for name, gradient in of_rows.items():
            rate, most = self._config.table_learning_rate, self._most_rows[name]
            self.model.sharded[name].update(distinct.rows[name], gradient, rate, most_rows=most)
        self._dense_optimizer.apply_gradients(zip(of_dense, dense, strict=True))
        return loss

    def _predict_eagerly(self, tensors: dict[str, Any]) -> Any:
        distinct, rows = self.model.rows(feature_ids(tensors, self._spec))
        return self.model.tower.clipped(self.model.vectors(distinct, rows))


class ShardedRatingModel:
    """Tables and tower of the rating model; make it within the scope of a strategy.

    Args:
      splitting: context manager; the strategy splits the variables that are created within it.

    Attributes:
      saved: the tf.Module that a checkpoint holds.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: TrainConfig,
        *,
        mean_rating: float,
        rating_range: tuple[float, float],
        splitting: AbstractContextManager[None],
    ) -> None:
        self._spec = spec
        self._config = feature_config(spec, config.seed)
        with splitting:
            self.sharded = {
                table.name: ShardedTable(table, config.seed + index) for index, table in enumerate(spec.tables)
            }
        self.tower = RatingTower.of_spec(spec, config, mean_rating=mean_rating, rating_range=rating_range)
        self.saved = tf.Module()
        self.saved.embedding = _Tables({name: table.table for name, table in self.sharded.items()})
        self.saved.tower = self.tower

    def rows(self, features: Mapping[str, Any]) -> tuple[DistinctRows, dict[str, Any]]:
        """Finds the distinct rows of a batch, and reads their vectors: table -> [U, D]."""
        distinct = DistinctRows.of(self._spec, features)
        return distinct, {name: self.sharded[name].gather(rows) for name, rows in distinct.rows.items()}

    def vectors(self, distinct: DistinctRows, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Combines the table rows that rows() read for a batch; returns [B, D] vectors by feature name."""
        return distinct.look_up(rows, self._config)


class _Tables(tf.Module):  # type: ignore[misc]
    # The attributes of this module have the names that a checkpoint of the TPUEmbedding layer gives to its tables.
    def __init__(self, tables: Mapping[str, Any]) -> None:
        super().__init__()
        self._tpu_embedding = tf.Module()
        for name, table in tables.items():
            setattr(self._tpu_embedding, name, table)
