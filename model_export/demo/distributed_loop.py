"""The demo's training loop in several processes: workers that step together, or a chief that sends steps to workers.

Every process builds the same examples from the same data. Checkpoints lie in a folder that all processes share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from model_export.demo.baselines import rmse
from model_export.demo.checkpoints import Checkpoints
from model_export.demo.config import TrainConfig
from model_export.demo.examples import Examples
from model_export.demo.layer_model import feature_config
from model_export.demo.loop import EpochResult, epoch_examples, feature_ids, padded_tensors
from model_export.demo.tower import RatingTower
from model_export.distribution.cluster import ClusterTask
from model_export.distribution.sharded_tables import DistinctRows, ShardedTable
from model_export.distribution.strategies import multi_worker_strategy, parameter_server_strategy
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from service.types import Array

# Steps per call of the compiled training loop of workers that step together.
_STEPS_PER_CALL = 20


class DistributedTrainer:
    """Trainer of the rating model in several processes; has Trainer's methods. Concurrency: one caller at a time.

    Args:
      folder: contains the checkpoints; the same folder for all processes.
      on_steps: called with (number of steps just done, their mean loss).
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: TrainConfig,
        train: Examples,
        held_out: Examples,
        *,
        task: ClusterTask,
        rating_range: tuple[float, float],
        folder: Path,
        on_steps: Callable[[int, float], None] = lambda steps, loss: None,
    ) -> None:
        # TensorFlow accepts a strategy of several workers only before it has run an operation.
        splitting: Any = nullcontext()
        if config.distribution == "multi_worker":
            self._strategy = multi_worker_strategy(task)
        else:
            self._strategy, partitioner = parameter_server_strategy(task)
            splitting = partitioner.splitting()
        tf.keras.utils.set_random_seed(config.seed)
        self._spec, self._config, self._task = spec, config, task
        self._train, self._held_out, self._on_steps = train, held_out, on_steps
        self._batch_size = min(config.batch_size, len(train))
        share = -(-self._batch_size // self._strategy.num_replicas_in_sync)
        self._most_rows = DistinctRows.most(spec, share)
        with self._strategy.scope():
            self.model = ShardedRatingModel(
                spec,
                config,
                mean_rating=float(train.rating.mean(dtype=np.float64)),
                rating_range=rating_range,
                splitting=splitting,
            )
            self._dense_optimizer = tf.keras.optimizers.legacy.Adam(config.dense_learning_rate)
            self._dense_optimizer._create_all_weights(self.model.tower.trainable_variables)
        accumulators = tf.Module()
        accumulators.tables = {name: table.accumulator for name, table in self.model.sharded.items()}
        self._checkpoints = Checkpoints(folder, self.model.saved, accumulators, self._dense_optimizer)
        self._steps = self._together if config.distribution == "multi_worker" else self._scheduled
        self._run_steps = tf.function(self._run_steps_eagerly, autograph=False, reduce_retracing=True)
        self._remote_step = tf.function(self._remote_step_eagerly, autograph=False, reduce_retracing=True)
        self._wait_for_all = tf.function(self._wait_for_all_eagerly, autograph=False)
        self._predict = tf.function(self._predict_eagerly, autograph=False, reduce_retracing=True)
        self._coordinator = None
        if config.distribution == "parameter_server":
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._train) // self._batch_size

    @property
    def global_step(self) -> int:
        return int(self._dense_optimizer.iterations.numpy())

    def resume(self) -> int:
        return self._checkpoints.restore()

    def save(self, epoch: int) -> None:
        """Writes a checkpoint after this epoch if this process is the chief; workers that step together wait for the
        chief.
        """
        if self._task.is_chief:
            self._checkpoints.save(epoch)
        if self._config.distribution == "multi_worker":
            # A worker must not end while the chief writes the checkpoint: the end of a worker stops the chief.
            self._wait_for_all()

    def run_epoch(self, epoch: int) -> EpochResult:
        loss = self._steps(epoch)
        held_out_rmse = rmse(self.predict(self._held_out), self._held_out.rating)
        return EpochResult(epoch, loss / self.steps_per_epoch, held_out_rmse)

    def predict(self, examples: Examples) -> Array:
        ratings: Array = self._predict(padded_tensors(examples, self._spec)).numpy()
        return ratings

    def _epoch(self, epoch: int) -> dict[str, Any]:
        examples = epoch_examples(self._train, self._config, epoch)
        return {**padded_tensors(examples, self._spec), "rating": tf.constant(examples.rating)}

    def _together(self, epoch: int) -> float:
        # Each worker computes the gradient of its share of each batch.
        tensors, total = self._epoch(epoch), 0.0
        seed = tf.constant([self._config.seed, epoch * self.steps_per_epoch], tf.int64)
        for first in range(0, self.steps_per_epoch, _STEPS_PER_CALL):
            steps = min(_STEPS_PER_CALL, self.steps_per_epoch - first)
            loss = float(self._run_steps(tensors, seed, tf.constant(first), tf.constant(steps)))
            total += loss
            self._on_steps(steps, loss / steps)
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

    def _scheduled(self, epoch: int) -> float:
        # The chief sends each batch to whichever worker is free; a worker's gradients may be some steps old.
        tensors = {name: tensor.numpy() for name, tensor in self._epoch(epoch).items()}
        assert self._coordinator is not None
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
