"""Initializes variables from another checkpoint or SavedModel, if model_dir has no checkpoint yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_export.tensorflow_setup import tf


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
