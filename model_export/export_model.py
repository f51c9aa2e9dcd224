"""Defines export(), which exports models of every kind of training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.exporter.versions import new_version_folder
from model_export.folder_checks import is_keras_file
from model_export.graphs.source import DEFAULT_BATCH_SIZES, ExportSource, lookup_devices
from service.artifact.manifest import LookupDevice

ACCEPTED = (
    "an EmbeddingEstimator (with serving_input_receiver_fn=...), a Keras model with TPUEmbedding layers or such a "
    "layer alone, a keras-rs model or layer, any other built Keras model, a `model-export train` run (its folder), or "
    "anything with the methods of model_export.graphs.source.ExportSource"
)
_SOURCE_MEMBERS = ("spec", "provenance", "predict_names", "save", "table_rows", "predict")
# Maps a class, by module and name, to a function that makes an ExportSource of a model of that class. Classes are
# compared by name, so that no library is imported that the model does not use. The first entry that fits counts.
_SOURCES = (
    ("model_export.estimator", "EmbeddingEstimator", "model_export.estimator.export_source", "EstimatorSource"),
    ("keras_rs", "DistributedEmbedding", "model_export.layers.keras_rs", "KerasRsSource"),
    ("keras.", "Model", "model_export.layers.keras_rs", "KerasRsSource"),
    ("tensorflow_recommenders", "TPUEmbedding", "model_export.layers.export_source", "LayerSource"),
    ("tf_keras", "Model", "model_export.layers.export_source", "LayerSource"),
)

_KERAS_OPTIONS = ("inputs", "measure", "say")


def export(
    model: Any,
    base_path: str | Path,
    *,
    signatures: Sequence[str] | None = None,
    lookup_device: LookupDevice | Sequence[LookupDevice] = "cpu",
    version: int | None = None,
    batch_sizes: Sequence[int] = DEFAULT_BATCH_SIZES,
    export_to_tpu: bool = False,
    allow_nonfinite: bool = False,
    warmup: bool = True,
    extra_files: Mapping[str, Path] | None = None,
    table_dtype: str | Mapping[str, str] | None = None,
    labels: Mapping[str, str | Path | Sequence[str]] | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    **source_options: Any,
) -> Path:
    """Writes base_path/<version>/, a stock SavedModel with a lookup manifest, and returns that folder.

    The folder appears in one step, after every signature has been compared: lookups with a numpy oracle, predictions
    with the answers of the model in memory.

    Args:
      model: an EmbeddingEstimator, a Keras model with TPUEmbedding layers or such a layer alone, a keras-rs model or
        layer, any other built model of Keras 3 or tf_keras or its .keras or .h5 file, the folder of a `model-export
        train` run, or any ExportSource.
      signatures: names of the signatures to write: "lookup", "lookup_tpu_tensor_core" and the model's predictions;
        None: all.
      lookup_device: "cpu", "tpu_tensor_core" or a list of both: devices to write a lookup for. The second pads rows to
        max_ids_per_row of each feature, and combines by sum or mean only.
      version: a new number; None takes the one after the highest that base_path holds, or 1.
      batch_sizes: ascending static sizes that a padded lookup is compiled for; more rows than the last are refused.
      export_to_tpu: write a {serve,tpu} MetaGraph beside {serve}, over the same variables.
      allow_nonfinite: export a table even if it holds NaN or infinity; the manifest then says how many.
      warmup: write requests that TensorFlow Serving replays when it loads the version.
      extra_files: path within assets.extra -> file to copy there.
      table_dtype: dtype of the tables that lookups read: "float32", "float16", "bfloat16", "int8" or "int4" (with a
        float32 scale per row), one for all tables or by table. Outputs stay float32, and predictions read the trained
        tables.
      labels: table -> what people call its rows, such as titles of films: a list with one for each row, or a file with
        one a line, or a CSV or TSV file of key or row number and label ("films.csv#title" names the column). The
        console, reports and searches show them. A table with one vocabulary of strings needs none: its keys are shown.
      clock: returns the time that the manifest records.
      source_options: further arguments for this kind of model: those of EstimatorSource, LayerSource or KerasRsSource,
        or of a Keras model without such layers `inputs`, `measure` and `say` (adopt.export_keras).

    Raises:
      TypeError: the model is of no known kind, or its kind does not have an option.
      ExportError: the model can not be exported with these arguments, a table holds NaN or infinity, or the
        SavedModel's outputs differ from the model's. base_path then gets no version.
    """
    devices = lookup_devices(lookup_device)
    # Check the version number before the slow export, so that a bad number is refused early.
    new_version_folder(Path(base_path), version)
    if isinstance(model, str | Path) and is_keras_file(model):
        from model_export.adoption.keras_saving import load_keras

        model = load_keras(Path(model))
    if _is_plain_keras(model):
        _refuse_arguments(devices, signatures, batch_sizes, export_to_tpu, table_dtype)
        _refuse_options("a Keras model without TPU embedding layers", source_options, _KERAS_OPTIONS)
        from model_export.adoption.adopt import export_keras

        return export_keras(
            model,
            Path(base_path),
            version=version,
            allow_nonfinite=allow_nonfinite,
            extra_files=extra_files or {},
            labels=labels or {},
            clock=clock,
            **source_options,
        )
    source = as_source(model, **source_options)
    # The module is imported late, because the import starts TensorFlow: wrong arguments have been reported by then.
    from model_export.exporter.artifact import write_artifact

    return write_artifact(
        source,
        Path(base_path),
        created=clock(),
        version=version,
        lookup_devices=devices,
        signatures=signatures,
        batch_sizes=batch_sizes,
        export_to_tpu=export_to_tpu,
        allow_nonfinite=allow_nonfinite,
        warmup=warmup,
        extra_files=extra_files,
        table_dtype=table_dtype,
        labels=labels or {},
    )


def as_source(model: Any, **options: Any) -> ExportSource:
    """Makes an ExportSource of a model; export() documents `model` and `source_options`.

    Raises:
      TypeError: the model is of no known kind, or its kind does not have an option.
    """
    if isinstance(model, str | Path):
        _refuse_options("a run's folder", options)
        from movielens.export_source import RatingSource

        return RatingSource.of_run(Path(model))
    for defined_in, class_name, module, source_name in _SOURCES:
        if _is_a(model, defined_in, class_name):
            made = getattr(import_module(module), source_name)
            parameters = dict([*inspect.signature(made).parameters.items()][1:])
            _refuse_options(f"{type(model).__name__} ({source_name})", options, [*parameters])
            needed = [name for name, one in parameters.items() if one.default is one.empty and name not in options]
            if needed:
                raise TypeError(f"export: {type(model).__name__} ({source_name}) needs {', '.join(needed)}")
            source: ExportSource = made(model, **options)
            return source
    if all(hasattr(type(model), name) or hasattr(model, name) for name in _SOURCE_MEMBERS):
        _refuse_options("an ExportSource", options)
        given: ExportSource = model
        return given
    raise TypeError(f"model is a {type(model).__module__}.{type(model).__qualname__}; expected {ACCEPTED}")


def _is_a(model: Any, defined_in: str, class_name: str) -> bool:
    return any(cls.__name__ == class_name and cls.__module__.startswith(defined_in) for cls in type(model).__mro__)


def _is_plain_keras(model: Any) -> bool:
    if _is_a(model, "keras_rs", "DistributedEmbedding") or _is_a(model, "tensorflow_recommenders", "TPUEmbedding"):
        return False
    if _is_a(model, "keras.", "Model"):
        return not import_module("model_export.layers.keras_rs").has_embedding_layer(model)
    if _is_a(model, "tf_keras", "Model"):
        return not import_module("model_export.layers.introspection").has_embedding_layer(model)
    return False


def _refuse_arguments(
    devices: Sequence[LookupDevice],
    signatures: Sequence[str] | None,
    batch_sizes: Sequence[int],
    export_to_tpu: bool,
    table_dtype: Any,
) -> None:
    tpu = "it needs a TPUEmbedding or DistributedEmbedding layer in place of Embedding (docs/migration.md)"
    refused = {
        "lookup_device": (tuple(devices) != ("cpu",), tpu),
        "export_to_tpu": (export_to_tpu, tpu),
        "batch_sizes": (tuple(batch_sizes) != tuple(DEFAULT_BATCH_SIZES), "of padded lookups; " + tpu),
        "signatures": (signatures is not None, "the model keeps its own, and `lookup` is added; leave it out"),
        "table_dtype": (
            table_dtype is not None,
            "export first, then run `model-export compact VERSION --table_dtype=...`",
        ),
    }
    if problems := [f"{name}: {why}" for name, (is_given, why) in refused.items() if is_given]:
        raise ExportError("a Keras model with plain Embedding layers can not be exported so:\n" + "\n".join(problems))


def _refuse_options(what: str, options: dict[str, Any], known: Sequence[str] = ()) -> None:
    if unknown := sorted(set(options) - set(known)):
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise TypeError(f"export: {what} {takes}, got {unknown}")
