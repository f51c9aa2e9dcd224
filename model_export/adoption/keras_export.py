"""Exports a Keras model without TPU embedding layers: Keras saves the model, and adopt() describes its lookups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from model_export.adoption.adopt import Say, adopt
from model_export.adoption.keras_saving import saved
from model_export.exporter.artifact import add_extra_files
from model_export.exporter.versions import LabelSource


def export_keras(
    model: Any,
    base: Path,
    *,
    version: int | None,
    allow_nonfinite: bool,
    extra_files: Mapping[str, Path],
    labels: Mapping[str, LabelSource],
    clock: Callable[[], datetime],
    inputs: Any = None,
    measure: bool = True,
    say: Say = lambda line: None,
) -> Path:
    """Exports a built Keras model to base/<version>/ and returns that folder.

    Args:
      model: a built model of Keras 3 or tf_keras. The version keeps its serving_default, and gets a `lookup`
        signature where no signature of the model is a lookup.
      inputs: tf.TensorSpecs of the model's inputs, as a dict, a list or alone; needed for a subclassed model.
      measure, say: as in adopt().

    Raises:
      ExportError: the model is not built, Keras can not save it, or the model looks up no table.
    """
    with saved(model, inputs) as folder:
        add_extra_files(folder, extra_files)
        return adopt(
            folder,
            out=base,
            version=version,
            measure=measure,
            allow_nonfinite=allow_nonfinite,
            labels=labels,
            say=say,
            clock=clock,
        )
