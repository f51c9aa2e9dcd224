"""The frameworks that build foreign models, imported when a model is built, and helpers of builders."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping
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


def save_module(
    folder: Path,
    calls: Mapping[str, Callable[..., Any]],
    kept: list[Any],
    inputs: Iterable[str] = (),
    **specs: tuple[str, list[int | None]],
) -> None:
    """Saves a tf.Module with a signature for each call, whose parameters have the names of the inputs.

    Args:
      kept: variables, layers and lookup tables that the calls read.
      inputs: of a call that takes any names.
      specs: input -> its dtype and shape; other inputs are int64 ids [B].
    """
    module, signatures = tf.Module(), {}
    module.kept = kept
    for key, call in calls.items():
        parameters = inspect.signature(call).parameters.values()
        has_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        names = inputs if has_any else [one.name for one in parameters]
        given = {name: specs.get(name, ("int64", [None])) for name in names}
        tensors = {name: tf.TensorSpec(shape, dtype, name) for name, (dtype, shape) in given.items()}
        signatures[key] = tf.function(call, autograph=False).get_concrete_function(**tensors)
    tf.saved_model.save(module, str(folder), signatures=signatures)


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
