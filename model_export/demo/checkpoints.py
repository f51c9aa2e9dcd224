"""Checkpoints of a training run: the model, both optimizers and the number of finished epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf

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
