"""Makes the tables and lookups of keras-rs `DistributedEmbedding` layers an ExportSource.

keras-rs is neither imported nor a dependency: this module calls a layer's `get_config()` and `get_embedding_tables()`,
with any Keras backend.

Source: keras_rs 0.4.0, layers/embedding/base_distributed_embedding.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.layers.lookup_source import LookupSource
from model_export.layers.to_spec import flatten_with_paths, input_name
from model_export.layers.vocabularies import Vocabulary, vocabulary_spec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import TooManyPolicy


class KerasRsSource(LookupSource):
    """The ExportSource of the lookups in a keras-rs model or layer. Concurrency: one caller at a time.

    A feature is named by its path in feature_configs, joined with _. If its input_shape is [B, K], a row is any number
    of ids, combined by the table's combiner, and K is the width of a tensor-core lookup. If it is [B], a row is one id.
    Tables of the TensorFlow backend are saved directly, those of other backends are copied. An id outside a table is an
    error.

    Args:
      model: a built DistributedEmbedding layer, or a Keras 3 model that holds such layers.
      max_ids_per_row: K by feature, for features whose input_shape does not fix it.
      vocabularies: feature -> the keys of its table's rows (layers.vocabularies).
      on_too_many_ids: see to_spec.model_spec.
      provenance: JSON values about the training, for the manifest.

    Raises:
      ExportError: there is no such layer, it is not built, or two features or two tables would have the same name.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_ids_per_row: Mapping[str, int] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        on_too_many_ids: TooManyPolicy = "error",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        layers = list(_layers(model))
        if not layers:
            raise ExportError(f"{type(model).__name__} {model.name!r} has no DistributedEmbedding layer")
        tables: dict[str, Any] = {}
        features: list[FeatureSpec] = []
        for layer in layers:
            configs = layer.get_config()
            tables |= _tables(layer, configs["tables"])
            features += [
                _feature(path, config, configs["tables"], max_ids_per_row or {}, vocabularies or {}, on_too_many_ids)
                for path, config in _flatten_features(configs["feature_configs"])
            ]
        known = {feature.name for feature in features}
        for argument, given in (("max_ids_per_row", max_ids_per_row), ("vocabularies", vocabularies)):
            if unknown := sorted(set(given or {}) - known):
                raise ExportError(f"{argument} names {unknown}; the features are {sorted(known)}")
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
        super().__init__(spec, tables, {"trained_with": "keras-rs DistributedEmbedding", **(provenance or {})})


def has_embedding_layer(model: Any) -> bool:
    """Says whether a Keras model has a DistributedEmbedding layer."""
    return next(_layers(model), None) is not None


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


def _flatten_features(configs: Any) -> list[tuple[str, Mapping[str, Any]]]:
    # get_config() describes a feature by a dict, which flatten_with_paths() would flatten too, so each dict is wrapped.
    wrapped = _wrapped(configs)
    return [(path, leaf.config) for path, leaf in flatten_with_paths(wrapped)]


class _Leaf:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config


def _wrapped(configs: Any) -> Any:
    if isinstance(configs, Mapping):
        if {"name", "table", "input_shape", "output_shape"} <= set(configs):
            return _Leaf(configs)
        return {key: _wrapped(part) for key, part in configs.items()}
    return [_wrapped(part) for part in configs]


def _feature(
    path: str,
    config: Mapping[str, Any],
    tables: list[dict[str, Any]],
    widths: Mapping[str, int],
    vocabularies: Mapping[str, Vocabulary],
    on_too_many_ids: TooManyPolicy,
) -> FeatureSpec:
    name = input_name(path or config["name"])
    shape = config["input_shape"]
    if len(shape) > 2:
        raise ExportError(f"feature {name!r} has input_shape {tuple(shape)}; a lookup takes rows of ids, [B] or [B, K]")
    is_ragged = len(shape) == 2
    width = widths.get(name, shape[1]) if is_ragged else 1
    if width is None:
        raise ExportError(f"feature {name!r} has rows of any length; give its K with max_ids_per_row=")
    return FeatureSpec(
        name,
        input_name(tables[config["table"]]["name"]),
        is_ragged=is_ragged,
        max_ids_per_row=width,
        vocabulary=vocabulary_spec(name, vocabularies[name]) if name in vocabularies else None,
        on_too_many_ids=on_too_many_ids,
    )
