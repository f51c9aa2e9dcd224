"""The frameworks that build foreign models, imported when a model is built, and helpers of builders."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

SEED = 7


class _Lazy:
    """A module that is imported at the first use of a name of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # While pytest collects, it asks each global of a test's file for these.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


# Keras 2 and Keras 3 cannot share a process, and a list of the models needs no TensorFlow.
tf: Any = _Lazy("tensorflow")


def keras3() -> Any:
    """Imports Keras 3 with the TensorFlow backend, and sets the random seed."""
    import keras

    assert keras.backend.backend() == "tensorflow"
    keras.utils.set_random_seed(SEED)
    return keras


def tf_keras() -> Any:
    """Imports Keras 2 (tf_keras) and sets its random seed."""
    import tf_keras as keras

    keras.utils.set_random_seed(SEED)
    return keras


def normal(name: str, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Returns normally distributed float32 numbers; the same name and shape always give the same numbers."""
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def variable(name: str, *shape: int, scale: float = 1.0) -> Any:
    """Returns a tf.Variable of the numbers that normal() makes."""
    return tf.Variable(normal(name, *shape, scale=scale), name=name)


def spec(name: str, dtype: str = "int64", shape: tuple[int | None, ...] = (None,)) -> Any:
    """Returns the tf.TensorSpec of an input; by default it is an input of ids [B]."""
    return tf.TensorSpec(shape, dtype, name)


def save_module(
    folder: Path, variables: Mapping[str, Any], signatures: Mapping[str, tuple[Callable[..., Any], list[Any]]]
) -> None:
    """Saves a tf.Module that has variables (or lookup tables) and a tf.function for each signature.

    Args:
      signatures: name -> (function, TensorSpecs of its inputs).
    """
    module = tf.Module()
    for name, value in variables.items():
        setattr(module, name, value)
    functions = {key: tf.function(call, input_signature=specs) for key, (call, specs) in signatures.items()}
    module.functions = functions
    concrete = {key: function.get_concrete_function() for key, function in functions.items()}
    tf.saved_model.save(module, str(folder), signatures=concrete)


class Tower:
    """A dense tower of two layers, whose variables a module keeps as attributes."""

    def __init__(self, name: str, width: int, hidden: int = 32, outputs: int = 1) -> None:
        self.kernel = variable(f"{name}_kernel", width, hidden, scale=0.1)
        self.bias = variable(f"{name}_bias", hidden, scale=0.1)
        self.last_kernel = variable(f"{name}_last_kernel", hidden, outputs, scale=0.1)
        self.last_bias = variable(f"{name}_last_bias", outputs, scale=0.1)

    def __call__(self, rows: Any) -> Any:
        hidden = tf.nn.relu(tf.matmul(rows, self.kernel) + self.bias)
        return tf.matmul(hidden, self.last_kernel) + self.last_bias

    @property
    def variables(self) -> list[Any]:
        return [self.kernel, self.bias, self.last_kernel, self.last_bias]
