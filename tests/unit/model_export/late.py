"""Imports TensorFlow, and modules of ours that import it, when a test first uses one of their names.

So collecting tests that do not need TensorFlow does not import it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from typing import Any
from unittest.mock import patch


class Late:
    """A proxy for a module, or an object in it, that is imported at first use: `Late("module", "Class.field")`."""

    def __init__(self, module: str, path: str = "") -> None:
        self._module, self._path = module, path

    def __getattr__(self, name: str) -> Any:
        # While pytest collects, it asks each global of a file for these.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(self.found(), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.found()(*arguments, **named)

    def found(self) -> Any:
        try:
            return reduce(getattr, filter(None, self._path.split(".")), import_module(self._module))
        except AttributeError:
            return import_module(f"{self._module}.{self._path}")


class _LateModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Late:
        return Late(self._name, name)


@contextmanager
def late() -> Iterator[None]:
    """Makes each name a Late that `from module import name` or `import module` in the `with` block imports."""
    importing, importer = builtins.__import__, sys._getframe(2).f_globals

    def late_import(name: str, variables: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        if variables is not importer:
            return importing(name, variables, local, names, level)
        return _LateModule(name) if names else Late(name)

    with patch("builtins.__import__", late_import):
        yield


SETUP = "model_export.tensorflow_setup"
tf = Late(SETUP, "tf")
tfrs = Late(SETUP, "tfrs")
embedding = Late(SETUP, "tf.tpu.experimental.embedding")
keras = Late(SETUP, "tf.keras.optimizers")
legacy = Late(SETUP, "tf.keras.optimizers.legacy")
TPUEmbedding = Late("model_export.layers.tpu_embedding", "TPUEmbedding")
tables = Late("model_export.layers.introspection", "tables")
