"""Variables with a table's shape in a SavedModel's graph; their rows are written into the checkpoint later.

tf.saved_model.save needs each variable in memory, and copies the variable once more. A streamed table uses no memory:
TensorFlow saves one number in the table's place, and add_rows() replaces this number by the rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_export.exporter.bundle_writer import BundleWriter
from model_export.parity.integrity import VARIABLES_PREFIX
from model_export.tensorflow_setup import tf
from service.types import Array

_VALUE_KEY = "VARIABLE_VALUE"


def streamed_table(name: str, shape: tuple[int, int]) -> Any:
    """Makes a [V, D] float32 variable without memory, for functions that will be traced but not run."""
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    variable = UninitializedVariable(trainable=False, shape=shape, dtype=tf.float32, name=name)
    variable._serialize_to_tensors = lambda: {_VALUE_KEY: tf.zeros([])}
    return variable


def add_rows(folder: Path, tables: Mapping[str, Iterable[Array]]) -> None:
    """Writes the rows of streamed tables into the checkpoint of a SavedModel, piece by piece.

    Args:
      folder: the SavedModel, which tf.saved_model.save wrote.
      tables: key in the checkpoint -> the rows in order, [n, D] float32 pieces.
    """
    old = folder / VARIABLES_PREFIX
    new = folder / "variables.partial" / old.name
    with BundleWriter(new) as writer:
        writer.copy(old, lambda key: key not in tables)
        for key, pieces in tables.items():
            writer.add(key, "float32", pieces)
    shutil.rmtree(old.parent)
    new.parent.rename(old.parent)
