"""Makes a keras-rs model, or a `DistributedEmbedding` layer alone, an ExportSource.

keras-rs is neither imported nor a dependency: this module calls a layer's `get_config()` and `get_embedding_tables()`,
with any Keras backend. Predictions need the TensorFlow backend.

Source: keras_rs 0.4.0, layers/embedding/base_distributed_embedding.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.source import PredictSignature
from model_export.layers.export_source import LookupSource, training_history
from model_export.layers.model_inputs import InputLeaf, ModelInputs, dynamic_batch, matched_inputs
from model_export.layers.to_spec import Vocabulary, flatten_with_paths, input_name, vocabulary_spec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import TooManyPolicy


class KerasRsSource(LookupSource):
    """The ExportSource of a keras-rs model or layer. Concurrency: one caller at a time.

    The signature serving_default is the model's prediction: it takes the model's own inputs, each named by its path,
    and gives the outputs the names that Keras gives them. A layer alone has lookups only.

    A feature is named by its path in feature_configs, joined with _. If its input_shape is [B, K], a row is any number
    of ids, combined by the table's combiner, and K is the width of a tensor-core lookup. If it is [B], a row is one id.
    Tables of the TensorFlow backend are saved directly, those of other backends are copied. A lookup refuses an id
    outside its table.

    Args:
      model: a built DistributedEmbedding layer, or a Keras 3 model that holds such layers.
      inputs: a batch that the model is called with, or the TypeSpecs of one; a subclassed model does not tell them.
      max_ids_per_row: K of all features, or by feature, where input_shape does not fix it.
      vocabularies: feature -> the keys of its table's rows (layers.vocabularies), in lookups.
      names: feature -> new name; the other arguments use the new names.
      on_too_many_ids: see to_spec.model_spec.
      history, provenance: as in LayerSource.

    Raises:
      ExportError: there is no such layer, it is not built, or two features or two tables would have the same name.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Any = None,
        max_ids_per_row: Mapping[str, int] | int | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        names: Mapping[str, str] | None = None,
        on_too_many_ids: TooManyPolicy = "error",
        history: Any = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        layers = list(_layers(model))
        if not layers:
            raise ExportError(f"{type(model).__name__} {model.name!r} has no DistributedEmbedding layer")
        tables: dict[str, Any] = {}
        paths: dict[str, FeatureSpec] = {}
        features: list[FeatureSpec] = []
        renamed = dict(names or {})
        for layer in layers:
            configs = layer.get_config()
            tables |= _tables(layer, configs["tables"])
            # get_config() describes a feature by a dict, which flatten_with_paths() would flatten too, so each dict is
            # wrapped.
            for path, wrapped in flatten_with_paths(_wrapped(configs["feature_configs"])):
                config = wrapped()
                name = input_name(path or config["name"])
                name = renamed.pop(name, name)
                paths[path] = _feature(name, config, configs["tables"], max_ids_per_row, vocabularies, on_too_many_ids)
                features.append(paths[path])
        known = {feature.name for feature in features}
        widths = max_ids_per_row if isinstance(max_ids_per_row, Mapping) else {}
        unknown = {"max_ids_per_row": set(widths) - known, "vocabularies": set(vocabularies or {}) - known}
        for argument, names_given in {**unknown, "names": set(renamed)}.items():
            if names_given:
                raise ExportError(f"{argument} names {sorted(names_given)}; the features are {sorted(known)}")
        specs = {
            input_name(table["name"]): TableSpec(
                input_name(table["name"]), table["vocabulary_size"], table["embedding_dim"], table["combiner"]
            )
            for layer in layers
            for table in layer.get_config()["tables"]
        }
        try:
            spec = ModelSpec(tuple(specs.values()), tuple(features))
        except ValueError as error:
            raise ExportError(str(error)) from error
        record: dict[str, Any] = {"trained_with": "keras-rs DistributedEmbedding"}
        if history is not None:
            record["history"] = training_history(history)
        super().__init__(model, spec, tables, {**record, **(provenance or {})}, inputs=None, feature_names={})
        self._paths = paths
        if layers[0] is not model:
            self.no_predictions = self._read_inputs(inputs)
        elif inputs is not None:
            raise ExportError("inputs: a DistributedEmbedding layer alone has lookups only; leave it out")

    def _read_inputs(self, inputs: Any) -> str:
        what = f"{type(self._model).__name__} {self._model.name!r}"
        backend = sys.modules["keras"].backend.backend()
        if backend != "tensorflow":
            return f"{what} runs on {backend!r}, and a SavedModel holds predictions of the TensorFlow backend only"
        structure = _structure(self._model, inputs)
        if structure is None:
            return f"{what} does not tell its inputs: give inputs=, a batch of what it takes"
        leaves = tuple(InputLeaf(path, spec) for path, spec in flatten_with_paths(structure))
        if other := [leaf.path for leaf in leaves if leaf.kind != "dense"]:
            return f"inputs {other} of {what} are sparse or ragged, and a signature takes plain tensors"
        self._inputs = ModelInputs(structure, leaves)
        return ""

    def _predict_signature(self, name: str) -> PredictSignature:
        leaves = self._predict_inputs().inputs.leaves
        feeds = matched_inputs([leaf.path for leaf in leaves], list(self._paths))
        return PredictSignature(row_inputs={input_name(s): self._paths[p].table for s, p in feeds.items()})


def has_embedding_layer(model: Any) -> bool:
    return next(_layers(model), None) is not None


def _structure(model: Any, inputs: Any) -> Any:
    if inputs is not None:
        return tf.nest.map_structure(dynamic_batch, inputs)
    # Functional and Sequential models tell their inputs. Of a subclassed model, Keras 3 keeps shapes without dtypes.
    known = getattr(model, "input", None) if getattr(model, "inputs", None) else None
    if known is None:
        return None
    return tf.nest.map_structure(_spec_of_keras_tensor, known)


def _spec_of_keras_tensor(tensor: Any) -> Any:
    shape, dtype = [None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype)
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, dtype)
    return tf.RaggedTensorSpec(shape, dtype) if getattr(tensor, "ragged", False) else tf.TensorSpec(shape, dtype)


def _layers(model: Any) -> Iterator[Any]:
    if hasattr(model, "get_embedding_tables"):
        yield model
        return
    for part in getattr(model, "layers", ()):
        yield from _layers(part)


def _tables(layer: Any, configs: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        held = layer.get_embedding_tables()
    except AttributeError as error:
        raise ExportError(f"layer {layer.name!r} is not built yet: call it once, or restore it") from error
    tables = {}
    for config in configs:
        table = held[config["name"]]
        if not isinstance(table, tf.Variable):
            table = tf.Variable(np.asarray(table), name=config["name"])
        tables[input_name(config["name"])] = table
    return tables


def _wrapped(configs: Any) -> Any:
    if isinstance(configs, Mapping):
        if {"name", "table", "input_shape", "output_shape"} <= set(configs):
            return lambda: configs
        return {key: _wrapped(part) for key, part in configs.items()}
    return [_wrapped(part) for part in configs]


def _feature(
    name: str,
    config: Mapping[str, Any],
    tables: list[dict[str, Any]],
    widths: Mapping[str, int] | int | None,
    vocabularies: Mapping[str, Vocabulary] | None,
    on_too_many_ids: TooManyPolicy,
) -> FeatureSpec:
    shape = config["input_shape"]
    if len(shape) > 2:
        raise ExportError(f"feature {name!r} has input_shape {tuple(shape)}; a lookup takes rows of ids, [B] or [B, K]")
    is_ragged = len(shape) == 2
    width: int | None = 1
    if is_ragged:
        width = widths.get(name, shape[1]) if isinstance(widths, Mapping) else shape[1] or widths
    if width is None:
        raise ExportError(f"feature {name!r} has rows of any length; give its K with max_ids_per_row=")
    words = (vocabularies or {}).get(name)
    return FeatureSpec(
        name,
        input_name(tables[config["table"]]["name"]),
        is_ragged=is_ragged,
        max_ids_per_row=width,
        vocabulary=None if words is None else vocabulary_spec(name, words),
        on_too_many_ids=on_too_many_ids,
    )
