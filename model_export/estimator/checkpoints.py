"""Reads an estimator's model_dir: the newest checkpoint, its variables and step, and the losses of the training."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_export.tensorflow_setup import tf


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path, without ".index", of the checkpoint that a model_dir names as its newest; None without one."""
    path: str | None = tf.train.latest_checkpoint(model_dir)
    return path


def trained_checkpoint(model_dir: str, checkpoint_path: str | None = None) -> str:
    """Returns `checkpoint_path`, or the newest checkpoint's path if it is None; raises ValueError if there is none."""
    path = checkpoint_path or latest_checkpoint(model_dir)
    if path is None:
        raise ValueError(f"Could not find trained model in model_dir: {model_dir}.")
    return path


def variable_names(model_dir: str) -> list[str]:
    """Returns the names of all variables of the newest checkpoint; raises ValueError if there is no checkpoint."""
    return [name for name, _ in tf.train.list_variables(trained_checkpoint(model_dir))]


def variable_value(model_dir: str, name: str) -> Any:
    """Returns a variable of the newest checkpoint as an array.

    Raises:
      ValueError: there is no checkpoint, or it has no such variable.
    """
    reader = tf.train.load_checkpoint(trained_checkpoint(model_dir))
    if not reader.has_tensor(name):
        raise ValueError(f"{name!r} is not in the checkpoint, which has {sorted(reader.get_variable_to_shape_map())}")
    return reader.get_tensor(name)


def global_step(checkpoint: str | None) -> int:
    """Returns the global step at which a checkpoint was saved; 0 if `checkpoint` is None."""
    if checkpoint is None:
        return 0
    return int(tf.train.load_checkpoint(checkpoint).get_tensor(tf.compat.v1.GraphKeys.GLOBAL_STEP))


def remove_unfinished(model_dir: str) -> None:
    """Removes the temporary files of a checkpoint that a killed process did not finish.

    TensorFlow writes a checkpoint to temporary files, renames them, and only then names it in the file `checkpoint`; so
    no reader needs the temporary files.
    """
    for folder in Path(model_dir).glob("model.ckpt-*_temp*"):
        shutil.rmtree(folder, ignore_errors=True)


def loss_history(model_dir: str) -> list[dict[str, float]]:
    """Returns the {"step", "loss"} of all training summaries in a model_dir, by step, each step once."""
    losses: dict[int, float] = {}
    for file in sorted(Path(model_dir).glob("events.out.tfevents.*")):
        losses.update(_losses(file))
    return [{"step": step, "loss": loss} for step, loss in sorted(losses.items())]


def _losses(file: Path) -> Sequence[tuple[int, float]]:
    found = []
    for record in tf.data.TFRecordDataset(str(file)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        found += [(event.step, value.simple_value) for value in event.summary.value if value.tag == "loss"]
    return found
