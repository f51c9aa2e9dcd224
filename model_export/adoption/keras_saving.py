"""Loads a Keras model from a file, and saves a Keras model as a SavedModel for adopt()."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model_export.adoption.spec import valid
from model_export.errors import ExportError
from model_export.folder_checks import keras_version
from model_export.tensorflow_setup import tf

_INPUTS_HINT = 'pass the specs of its inputs: inputs={"user": tf.TensorSpec([None], tf.int64), ...}'


@contextlib.contextmanager
def saved(model: Any, inputs: Any = None) -> Iterator[Path]:
    """Yields the folder of a temporary SavedModel that Keras writes of a model; errors name the model in its place.

    Raises ExportError.
    """
    what = f"{type(model).__name__} {model.name!r}"
    _check(model, what, inputs)
    with tempfile.TemporaryDirectory() as temporary:
        # The folder bears the model's name, because adopt() records the folder's name in the manifest as the source.
        folder = Path(temporary) / valid(model.name)
        try:
            _save(model, folder, inputs)
        except Exception as error:
            # Catch every exception, because Keras raises many types for layers that it can not save.
            raise ExportError(
                f"Keras can not save {what}: {error}\nLeave that part out of the exported model, for example with a "
                "second keras.Model over the same layers"
            ) from error
        try:
            yield folder
        except ExportError as error:
            if str(folder) not in str(error):
                raise
            raise ExportError(str(error).replace(str(folder), what)) from error


def load_keras(path: Path) -> Any:
    """Loads a model from a .keras or .h5 file, with the version of Keras that wrote it; raises ExportError."""
    keras = importlib.import_module("tf_keras" if keras_version(path).startswith("2.") else "keras")
    try:
        # Keras raises deprecation warnings about itself, about which users can do nothing.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return keras.models.load_model(path, compile=False)
    except Exception as error:
        # Catch every exception, because Keras raises many types for classes that it does not find.
        raise ExportError(
            f"Keras can not load {path}: {error}\nIf the model has classes of your own, load it in a program that "
            "defines them, and call model_export.export(model, folder)"
        ) from error


def _check(model: Any, what: str, inputs: Any) -> None:
    if not model.built:
        raise ExportError(f"{what} is not built yet: fit it, or call it once on data, before you export it")
    if not _is_keras3(model):
        return
    backend = sys.modules["keras"].backend.backend()
    if backend != "tensorflow":
        raise ExportError(
            f"{what} runs on {backend!r}, whose SavedModels hold compiled code and no lookups: save its weights, and "
            "load them in a process with KERAS_BACKEND=tensorflow"
        )
    # Keras 3 would export a subclassed model with the shapes of one batch, and with every input as float32. So the
    # caller must pass `inputs` for such a model.
    tensors = tf.nest.flatten(getattr(model, "inputs", None) or [])
    if inputs is None and (not tensors or any(tensor.shape[0] is not None for tensor in tensors)):
        raise ExportError(f"{what} does not tell its inputs; {_INPUTS_HINT}")


def _is_keras3(model: Any) -> bool:
    return not any(cls.__module__.startswith("tf_keras.") for cls in type(model).__mro__)


def _save(model: Any, folder: Path, inputs: Any) -> None:
    signature = None if inputs is None else [_named(inputs)]
    if _is_keras3(model):
        model.export(str(folder), verbose=False, input_signature=signature)
        return
    # export() of a tf_keras model prints a report, which is hidden here, and takes no input signature.
    with contextlib.redirect_stdout(io.StringIO()):
        if signature is None:
            model.export(str(folder))
            return
        archive = sys.modules["tf_keras"].export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", model.__call__, input_signature=signature)
        archive.write_out(str(folder))


def _named(inputs: Any) -> Any:
    """Returns the given input specs; if they are a dict, each TensorSpec in it gets its key as its name."""
    if not isinstance(inputs, Mapping):
        return inputs
    return {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()}
