"""Exports a Keras model without TPU embedding layers: Keras saves the model, and adopt() describes its lookups."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from model_export.adoption.adopt import Say, adopt
from model_export.adoption.names import valid
from model_export.errors import ExportError
from model_export.exporter.artifact import add_extra_files
from model_export.exporter.finishing import LabelSource
from model_export.tensorflow_setup import tf

_INPUTS_HINT = 'pass the specs of its inputs: inputs={"user": tf.TensorSpec([None], tf.int64), ...}'


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
        add_extra_files(folder, extra_files)
        try:
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
        except ExportError as error:
            raise ExportError(str(error).replace(str(folder), what)) from error


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
