"""Reads the checkpoints and summaries of a model_dir, and starts a training with the values of a checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_export.tensorflow_setup import tf


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path, without ".index", of the checkpoint that a model_dir names as its newest; None without one."""
    path: str | None = tf.train.latest_checkpoint(model_dir)
    return path


def global_step(checkpoint: str | None) -> int:
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


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """The variables to initialize, and the checkpoint to read; tf.compat.v1.train.warm_start documents the fields.

    vars_to_warm_start: ".*" or another regular expression selects trainable variables, with embedding tables but
        without optimizer slots; a list of expressions selects any variables, so [".*"] restores the slots too.
    var_name_to_vocab_info: variable -> tf.compat.v1.train.VocabInfo, to reorder a table for a new vocabulary.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] = field(default_factory=dict)
    var_name_to_prev_var_name: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")


def warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Makes WarmStartSettings of the argument warm_start_from: a checkpoint, a folder of one, or a SavedModel.

    Raises:
      ValueError: warm_start_from is neither a path nor WarmStartSettings.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, (str, bytes, os.PathLike)):
        raise ValueError(
            f"warm_start_from must be a string or a WarmStartSettings, instead got {type(warm_start_from)}"
        )
    path = os.fsdecode(warm_start_from)
    variables = os.path.join(path, "variables", "variables")
    return WarmStartSettings(variables if os.path.exists(f"{variables}.index") else path)


def warm_start(settings: WarmStartSettings) -> None:
    """Makes the current graph's initializers read a checkpoint. Call it after model_fn has made the variables."""
    tf.compat.v1.train.warm_start(
        settings.ckpt_to_initialize_from,
        settings.vars_to_warm_start,
        dict(settings.var_name_to_vocab_info),
        dict(settings.var_name_to_prev_var_name),
    )
