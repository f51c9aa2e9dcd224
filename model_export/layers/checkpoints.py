"""Restores checkpoints of layer models, even if a TPU's SparseCores stored several tables in one array.

Keys of a plain checkpoint, each before /.ATTRIBUTES/VARIABLE_VALUE: `<path to the layer>/_tpu_embedding/<table>`; slots
of a Keras optimizer at `<same>/.OPTIMIZER_SLOT/<path to the optimizer>/<slot>`. A stacked checkpoint has
`_tpu_embedding/<stack>` instead, and `_tpu_embedding/_sparse_core_table_layouts`, which describes the tables in each
stack.

Source: TensorFlow 2.21, python/tpu/tpu_embedding_for_serving.py and tpu_embedding_v3_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.layers import introspection
from model_export.tensorflow_setup import tf

_LAYOUTS = "/_tpu_embedding/_sparse_core_table_layouts/"


def is_stacked(path: str | Path) -> bool:
    """Says whether SparseCores wrote a checkpoint, with several tables in one array; raises ExportError if there is
    none.
    """
    return any(_LAYOUTS in f"/{key}" for key in _keys(path))


def restore(path: str | Path, *, build: Callable[[], Any] | None = None, **objects: Any) -> None:
    """Restores a checkpoint of `tf.train.Checkpoint(**objects).save`, and checks that it lacks no variable.

    TensorFlow can unstack a stacked checkpoint only while it creates the tables. So restore it before the first call of
    a subclass model; for a functional model, which creates its tables when it is constructed, use restore_layer(). A
    stacked checkpoint has no slots.

    Args:
      path: the checkpoint's prefix, as tf.train.latest_checkpoint returns it.
      build: function that creates the model's other variables, for example by a call on one batch.
      objects: model=..., embedding_optimizer=..., by the names under which they were saved.

    Raises:
      ExportError: there is no such checkpoint; it is stacked and a layer has tables already; or it lacks a variable of
        `objects` or has it in another shape.
    """
    modules = (part for part in objects.values() if isinstance(part, tf.Module))
    layers = [layer for part in modules for layer in introspection.found_layers(part)]
    if is_stacked(path) and (built := [layer.name for layer in layers if introspection.is_built(layer)]):
        raise ExportError(
            f"{path} holds stacked tables, which layers {built} can not take any more: restore before the model is "
            "called first, or restore_layer() before a functional model is made of the layer"
        )
    root = tf.train.Checkpoint(**objects)
    _read(root, path, layers, f"{sorted(objects)}", build)


def restore_layer(path: str | Path, layer: Any) -> None:
    """Restores one TPUEmbedding layer's tables, before its first call, from a checkpoint of a model with the layer.

    Raises:
      ExportError: the layer has tables already, or the checkpoint does not hold exactly one layer with these tables.
    """
    if introspection.is_built(layer):
        raise ExportError(f"layer {layer.name!r} has made its tables already: restore before it is called first")
    places = sorted({f"/{key}".split("/_tpu_embedding/")[0] for key in _keys(path) if "/_tpu_embedding/" in f"/{key}"})
    if len(places) != 1:
        raise ExportError(f"{path} holds {len(places)} TPUEmbedding layers, expected one: {places}")
    root = layer
    for part in reversed(places[0].strip("/").split("/") if places[0] else []):
        root = tf.train.Checkpoint(**{part: root})
    if not isinstance(root, tf.train.Checkpoint):
        root = tf.train.Checkpoint(root=root)
    _read(root, path, [layer], f"layer {layer.name!r}")


def _read(root: Any, path: str | Path, layers: list[Any], what: str, build: Callable[[], Any] | None = None) -> None:
    try:
        # Checkpoint.read() is used instead of restore(), which needs a save counter: checkpoints of write() have none.
        status = root.read(str(path))
        # Silences TensorFlow's later warning about values in the checkpoint that are not restored, such as slots.
        status.expect_partial()
        unstacked = [held.parameters for layer in layers for held in introspection.tables(layer).values()]
        if build is not None:
            build()
    except KeyError as error:
        # TensorFlow raises KeyError if a stacked array holds a table that the layer lacks.
        raise ExportError(f"{path} does not fit {what}: no feature uses its table {error}") from error
    except (ValueError, tf.errors.OpError) as error:
        raise ExportError(f"{path} does not fit {what}: {error}") from error
    # TensorFlow reports the tables of a stacked array as missing in the checkpoint, so unmatched() must not count these
    # tables.
    missed = introspection.unmatched(status, root, unstacked if is_stacked(path) else [])
    if missed:
        raise ExportError(f"{path} does not fit {what}: it lacks {missed}")


def _keys(path: str | Path) -> list[str]:
    try:
        return [key for key, _ in tf.train.list_variables(str(path))]
    except (ValueError, tf.errors.OpError) as error:
        raise ExportError(f"no checkpoint {path}: {error}") from error
