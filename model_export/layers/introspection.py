"""Reads a TPUEmbedding layer: its features, tables and slots. No other file reads private fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf, tfrs


@dataclass(frozen=True, slots=True)
class TableVariables:
    """A table's variables: the [V, D] parameters and the layer's own slots, by TensorFlow's slot names.

    slots: empty where a Keras optimizer holds them instead, and for optimizers that have none.
    optimizer: the tf.tpu.experimental.embedding object, also where it stands for a Keras optimizer.
    """

    parameters: Any
    slots: Mapping[str, Any]
    optimizer: Any


def embedding_layers(model: Any) -> list[Any]:
    """Returns the TPUEmbedding layers of a Keras model or tf.Module, or the layer itself, in order of creation.

    Raises:
      ExportError: there is none.
    """
    layers = _embedding_layers(model)
    if not layers:
        raise ExportError(f"{type(model).__name__} {model.name!r} has no TPUEmbedding layer")
    return layers


def has_embedding_layer(model: Any) -> bool:
    """Says whether a Keras model or tf.Module is or holds a TPUEmbedding layer."""
    return bool(_embedding_layers(model))


def feature_config(layer: Any) -> Any:
    """Returns the layer's nest of FeatureConfig; its TableConfigs are copies of the user's, all of them named."""
    return layer._feature_config


def is_built(layer: Any) -> bool:
    """Says whether the layer has made its tables."""
    return bool(layer._tpu_embedding._built)


def tables(layer: Any) -> dict[str, TableVariables]:
    """Returns table name -> variables, in order of first use; makes them where the layer has not been called yet."""
    embedding = layer._tpu_embedding
    held = embedding.variables
    found = {}
    for config in {id(f.table): f.table for f in tf.nest.flatten(feature_config(layer))}.values():
        parts = dict(held[config.name])
        parameters = parts.pop("parameters")
        # Slots that a Keras optimizer made are that optimizer's.
        creator = getattr(config.optimizer, "slot_variable_creation_fn", None)
        found[config.name] = TableVariables(parameters, {} if creator else parts, config.optimizer)
    return found


def unmatched(status: Any, root: Any, aside: Sequence[Any]) -> list[str]:
    """Returns names of the variables below root that a checkpoint had no value for; sorted, those of aside left out.

    Args:
      status: of tf.train.Checkpoint.read.
    """
    try:
        status.assert_existing_objects_matched()
    except AssertionError:
        bound = {id(part) for part in status._checkpoint.object_by_proto_id.values()} | {id(part) for part in aside}
        below = tf.train.TrackableView(root).descendants()
        names = {part.name for part in below if isinstance(part, tf.Variable) and id(part) not in bound}
        # Nothing by name: what is missing are slots, which are nobody's children.
        return sorted(names) or ([] if aside else ["slots of the optimizer"])
    return []


def _embedding_layers(model: Any) -> list[Any]:
    kind = tfrs.layers.embedding.TPUEmbedding
    return [model] if isinstance(model, kind) else [part for part in model.submodules if isinstance(part, kind)]
