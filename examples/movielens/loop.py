"""The demo's training loop: separate optimizers for tables and tower, a checkpoint per epoch, resumable.

An epoch's order and its id dropout depend only on the seed and the epoch's number, so a resumed run sees the same
batches as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf
from movielens.examples import Examples, rmse
from movielens.model import RatingModel
from movielens.rating_model import TrainConfig
from service.types import Array, RaggedIds

_KEPT = 2


class Checkpoints:
    """Writer and reader of the checkpoints in a training run's folder. Concurrency: one caller at a time."""

    def __init__(self, folder: Path, model: Any, table_optimizer: Any, dense_optimizer: Any) -> None:
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(
            model=model, table_optimizer=table_optimizer, dense_optimizer=dense_optimizer, epoch=self._epoch
        )
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(folder), max_to_keep=_KEPT)

    def save(self, epoch: int) -> None:
        self._epoch.assign(epoch)
        self._manager.save(checkpoint_number=epoch)

    def restore(self) -> int:
        """Restores the newest checkpoint of model and optimizers; returns its epoch, or 0 if there is no checkpoint."""
        if self._manager.latest_checkpoint is None:
            return 0
        self._checkpoint.restore(self._manager.latest_checkpoint).assert_consumed()
        return int(self._epoch)


def restore_weights(folder: Path, model: Any) -> tuple[int, Path]:
    """Fills a model without optimizers, or a part of such a model, from the newest checkpoint.

    Returns:
      The checkpoint's epoch, and its path without ".index".

    Raises:
      ExportError: there is no checkpoint.
    """
    latest = tf.train.latest_checkpoint(str(folder))
    if latest is None:
        raise ExportError(f"there is no checkpoint in {folder}; train first")
    epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
    status = tf.train.Checkpoint(model=model, epoch=epoch).restore(latest)
    status.assert_existing_objects_matched()
    # The checkpoint's variables outside the rating model, such as the optimizers' variables, are not restored.
    status.expect_partial()
    return int(epoch), Path(latest)


# Steps per call of the compiled training loop: few enough to report progress often, many enough that Python's cost is
# small.
_STEPS_PER_CALL = 20


@dataclass(frozen=True, slots=True)
class EpochResult:
    epoch: int
    train_loss: float
    held_out_rmse: float


class Trainer:
    """Trainer of the rating model on one split of the ratings, in this process alone.

    Args:
      folder: of the checkpoints.
      on_steps: called with (number of steps just done, their mean loss).

    Concurrency: one caller at a time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: TrainConfig,
        train: Examples,
        held_out: Examples,
        *,
        rating_range: tuple[float, float],
        folder: Path,
        on_steps: Callable[[int, float], None] = lambda steps, loss: None,
    ) -> None:
        self._spec, self._config, self._on_steps = spec, config, on_steps
        self._train, self._held_out = train, held_out
        self._batch_size = min(config.batch_size, len(train))
        self.model: Any
        self._checkpoints: Checkpoints
        self._dense_optimizer: Any
        self._build(folder, mean_rating=float(train.rating.mean(dtype=np.float64)), rating_range=rating_range)
        self._run_steps = tf.function(self._run_steps_eagerly, autograph=False, reduce_retracing=True)
        self._predict = tf.function(self._predict_eagerly, autograph=False, reduce_retracing=True)

    def _build(self, folder: Path, **ratings: Any) -> None:
        """Makes the model, its optimizers and its checkpoints."""
        tf.keras.utils.set_random_seed(self._config.seed)
        # TPUEmbedding refuses Keras's new optimizers, so the legacy classes are used.
        legacy = tf.keras.optimizers.legacy
        self._table_optimizer = legacy.Adagrad(self._config.table_learning_rate)
        self._dense_optimizer = legacy.Adam(self._config.dense_learning_rate)
        self.model = RatingModel(self._spec, self._config, table_optimizer=self._table_optimizer, **ratings)
        # A restore needs all variables of a checkpoint, but an optimizer creates its variables only at its first step.
        self._table_optimizer._create_all_weights(list(self.model.tables.values()))
        self._dense_optimizer._create_all_weights(self.model.tower.trainable_variables)
        self._checkpoints = Checkpoints(folder, self.model, self._table_optimizer, self._dense_optimizer)

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches in an epoch, which leaves out the last examples of its shuffled order."""
        return len(self._train) // self._batch_size

    @property
    def global_step(self) -> int:
        return int(self._dense_optimizer.iterations.numpy())

    def resume(self) -> int:
        return self._checkpoints.restore()

    def save(self, epoch: int) -> None:
        self._checkpoints.save(epoch)

    def run_epoch(self, epoch: int) -> EpochResult:
        """Trains for one epoch, numbered from 1, and measures the RMSE on the held-out ratings."""
        loss = self._trained(epoch)
        held_out_rmse = rmse(self.predict(self._held_out), self._held_out.rating)
        return EpochResult(epoch, loss / self.steps_per_epoch, held_out_rmse)

    def _trained(self, epoch: int) -> float:
        """Trains for one epoch; returns the sum of the losses of its steps."""
        tensors, total = self._epoch_tensors(epoch), 0.0
        seed = tf.constant([self._config.seed, epoch * self.steps_per_epoch], tf.int64)
        for first in range(0, self.steps_per_epoch, _STEPS_PER_CALL):
            steps = min(_STEPS_PER_CALL, self.steps_per_epoch - first)
            loss = float(self._run_steps(tensors, seed, tf.constant(first), tf.constant(steps)))
            total += loss
            self._on_steps(steps, loss / steps)
        return total

    def predict(self, examples: Examples) -> Array:
        ratings: Array = self._predict(padded_tensors(examples, self._spec)).numpy()
        return ratings

    def _epoch_tensors(self, epoch: int) -> dict[str, Any]:
        examples = epoch_examples(self._train, self._config, epoch)
        return {**padded_tensors(examples, self._spec), "rating": tf.constant(examples.rating)}

    def _run_steps_eagerly(self, tensors: dict[str, Any], seed: Any, first: Any, steps: Any) -> Any:
        def body(step: Any, total: Any) -> tuple[Any, Any]:
            rows = tf.range(step * self._batch_size, (step + 1) * self._batch_size)
            batch = {name: tf.gather(tensor, rows) for name, tensor in tensors.items()}
            return step + 1, total + self._step(batch, seed + [0, tf.cast(step, tf.int64)])

        return tf.while_loop(lambda step, _: step < first + steps, body, (first, tf.constant(0.0)))[1]

    def _step(self, batch: dict[str, Any], seed: Any) -> Any:
        tables = list(self.model.tables.values())
        dense = list(self.model.tower.trainable_variables)
        with tf.GradientTape() as tape:
            vectors = self.model.embedding(feature_ids(batch, self._spec))
            error = self.model.tower(vectors, self._config.dropout, seed) - batch["rating"]
            mse = tf.reduce_mean(tf.square(error))
        gradients = tape.gradient(mse, tables + dense)
        self._table_optimizer.apply_gradients(zip(gradients[: len(tables)], tables, strict=True))
        self._dense_optimizer.apply_gradients(zip(gradients[len(tables) :], dense, strict=True))
        return mse

    def _predict_eagerly(self, tensors: dict[str, Any]) -> Any:
        return self.model.tower.clipped(self.model.embedding(feature_ids(tensors, self._spec)))


def epoch_examples(train: Examples, config: TrainConfig, epoch: int) -> Examples:
    """Returns the training examples in an epoch's random order, with a random share of their ids replaced by 0."""
    rng = np.random.default_rng([config.seed, epoch])
    examples = train.select(rng.permutation(len(train)))

    def forget(ids: Array) -> Array:
        return np.where(rng.random(ids.shape) < config.unknown_rate, 0, ids)

    return Examples(
        ids={name: forget(ids) for name, ids in examples.ids.items()},
        ragged={name: RaggedIds(forget(ids.values), ids.row_splits) for name, ids in examples.ragged.items()},
        rating=examples.rating,
    )


def padded_tensors(examples: Examples, spec: ModelSpec) -> dict[str, Any]:
    """Converts ragged features to padded ids and lengths, so that a compiled loop can gather a batch's rows."""
    tensors = {name: tf.constant(ids) for name, ids in examples.ids.items()}
    for name, ids in examples.ragged.items():
        lengths = np.diff(ids.row_splits)
        width = spec.feature(name).max_ids_per_row
        padded = np.zeros((len(lengths), width), np.int64)
        padded[np.arange(width) < lengths[:, None]] = ids.values
        tensors[name] = tf.constant(padded)
        tensors[name + "_length"] = tf.constant(lengths)
    return tensors


def feature_ids(batch: dict[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """Returns the ids of each feature in a batch of examples that padded_tensors() padded."""
    return {
        f.name: tf.RaggedTensor.from_tensor(batch[f.name], lengths=batch[f.name + "_length"])
        if f.is_ragged
        else batch[f.name]
        for f in spec.features
    }
