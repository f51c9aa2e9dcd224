"""Imports TensorFlow, and modules of ours that import it, when a test first uses one of their names.

So collecting tests that do not need TensorFlow does not import it.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any


class Late:
    """A proxy for a module, or an object in it, that is imported at first use: `Late("module", "Class.field")`."""

    def __init__(self, module: str, path: str = "") -> None:
        self._module, self._path = module, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found(), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.found()(*arguments, **named)

    def found(self) -> Any:
        return reduce(getattr, filter(None, self._path.split(".")), import_module(self._module))


SETUP = "model_export.tensorflow_setup"
tf = Late(SETUP, "tf")
tfrs = Late(SETUP, "tfrs")
embedding = Late(SETUP, "tf.tpu.experimental.embedding")
keras = Late(SETUP, "tf.keras.optimizers")
legacy = Late(SETUP, "tf.keras.optimizers.legacy")
TPUEmbedding = Late("model_export.layers.tpu_embedding", "TPUEmbedding")
tables = Late("model_export.layers.introspection", "tables")
