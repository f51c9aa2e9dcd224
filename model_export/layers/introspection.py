"""Reads the features, tables and slots of a TPUEmbedding layer. Only this file reads the layer's private fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf, tfrs


@dataclass(frozen=True, slots=True)
class TableVariables:
    """A table's variables: the [V, D] parameters, and the slots that the layer owns, by TensorFlow's slot names.

    slots: empty if a Keras optimizer holds the slots, or the optimizer has none.
    optimizer: the tf.tpu.experimental.embedding object, even if it represents a Keras optimizer.
    """

    parameters: Any
    slots: Mapping[str, Any]
    optimizer: Any


def embedding_layers(model: Any) -> list[Any]:
    """Returns the TPUEmbedding layers of a Keras model or tf.Module in order of creation; a layer returns itself.

    Raises:
      ExportError: the model has no such layer.
    """
    layers = found_layers(model)
    if not layers:
        raise ExportError(f"{type(model).__name__} {model.name!r} has no TPUEmbedding layer")
    return layers


def has_embedding_layer(model: Any) -> bool:
    return bool(found_layers(model))


def feature_config(layer: Any) -> Any:
    return layer._feature_config


def is_built(layer: Any) -> bool:
    return bool(layer._tpu_embedding._built)


def tables(layer: Any) -> dict[str, TableVariables]:
    """Returns each table's variables by table name, in order of first use; builds a layer that was not called yet."""
    embedding = layer._tpu_embedding
    held = embedding.variables
    found = {}
    for config in {id(f.table): f.table for f in tf.nest.flatten(feature_config(layer))}.values():
        parts = dict(held[config.name])
        parameters = parts.pop("parameters")
        # A Keras optimizer owns its slot variables, so they are not listed among the TPUEmbedding layer's slots.
        creator = getattr(config.optimizer, "slot_variable_creation_fn", None)
        found[config.name] = TableVariables(parameters, {} if creator else parts, config.optimizer)
    return found


def unmatched(status: Any, root: Any, aside: Sequence[Any]) -> list[str]:
    try:
        status.assert_existing_objects_matched()
    except AssertionError:
        bound = {id(part) for part in status._checkpoint.object_by_proto_id.values()} | {id(part) for part in aside}
        below = tf.train.TrackableView(root).descendants()
        names = {part.name for part in below if isinstance(part, tf.Variable) and id(part) not in bound}
        # The checkpoint lacks some variables of the program. If none of them is below `root`, they are optimizer slots,
        # which are no children of a trackable object, or only the variables in `aside`.
        return sorted(names) or ([] if aside else ["slots of the optimizer"])
    return []


def found_layers(model: Any) -> list[Any]:
    kind = tfrs.layers.embedding.TPUEmbedding
    return [model] if isinstance(model, kind) else [part for part in model.submodules if isinstance(part, kind)]
