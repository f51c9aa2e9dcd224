"""Trains a model's dense layers with one optimizer and its tables with others, in the same way on CPU and TPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from model_export.errors import ExportError
from model_export.layers import introspection
from model_export.layers.tpu_embedding import TPUEmbedding
from model_export.layers.tpu_rules import apply_tpu_optimizer
from model_export.tensorflow_setup import tf


def split_variables(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns a model's trainable variables in two lists: those of its TPUEmbedding layers, and all others.

    On a TPU the layers' variables are stand-ins: their gradients train the tables in the embedding cores.
    """
    layers = introspection.embedding_layers(model)
    of_layers = {id(variable) for layer in layers for variable in layer.trainable_variables}
    variables = model.trainable_variables
    return (
        [variable for variable in variables if id(variable) in of_layers],
        [variable for variable in variables if id(variable) not in of_layers],
    )


def apply_gradients(
    model: Any, gradients: Sequence[Any], dense_optimizer: Any, embedding_optimizer: Any = None
) -> None:
    """Applies gradients of model.trainable_variables: to tables by their optimizers, to others by dense_optimizer.

    Args:
      gradients: one per trainable variable, in the model's order; None for a variable without gradient.
      dense_optimizer: any Keras optimizer. If it trains tables too, it counts the step once.
      embedding_optimizer: the Keras optimizer that was given to the layer, for all tables. None: each table's own
        optimizer, which a TPUEmbedding of model_export.layers records; an optimizer of tf.tpu.experimental.embedding,
        or a name, then trains by a TPU's rules, with slots in the layer.

    Raises:
      ExportError: a table has no optimizer, or a Keras optimizer holds its slots and was not given.
    """
    by_variable = {id(v): g for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None}
    _, dense = split_variables(model)
    of_optimizer: dict[int, tuple[Any, list[Any]]] = {id(dense_optimizer): (dense_optimizer, list(dense))}
    for layer in introspection.embedding_layers(model):
        for variable, optimizer, held in _optimizers(layer, embedding_optimizer):
            if id(variable) not in by_variable:
                continue
            if _is_keras(optimizer):
                of_optimizer.setdefault(id(optimizer), (optimizer, []))[1].append(variable)
            elif held is not None:
                apply_tpu_optimizer(held, by_variable[id(variable)])
    for optimizer, variables in of_optimizer.values():
        pairs = [(by_variable[id(variable)], variable) for variable in variables if id(variable) in by_variable]
        if pairs:
            optimizer.apply_gradients(pairs)


def train_step(
    model: Any, loss: Callable[[Any, Any], Any], dense_optimizer: Any, embedding_optimizer: Any = None
) -> Any:
    """Returns a tf.function (features, labels) -> loss, which trains one step with both kinds of optimizers.

    The loss is loss(labels, predictions) plus the model's own losses (regularizers). On a TPU, run it as
    `strategy.run(step, args=(features, labels))` within a tf.function.

    Args:
      dense_optimizer, embedding_optimizer: as in apply_gradients().
    """
    takes_training = "training" in inspect.signature(model.call).parameters
    arguments: Mapping[str, Any] = {"training": True} if takes_training else {}

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(features, **arguments))
            value = tf.add_n([value, *model.losses]) if model.losses else value
        gradients = tape.gradient(value, model.trainable_variables)
        apply_gradients(model, gradients, dense_optimizer, embedding_optimizer)
        return value

    return tf.function(step, autograph=False)


def _optimizers(layer: Any, given: Any) -> Iterable[tuple[Any, Any, Any]]:
    # Yields (variable, its optimizer, its table's variables). The third is None if the variable stands in for tables on
    # a TPU.
    tables = introspection.tables(layer)
    on_cpu = {id(held.parameters) for held in tables.values()}
    known = layer.table_optimizers if isinstance(layer, TPUEmbedding) else {}
    for name, held in tables.items():
        yield held.parameters, given if given is not None else known.get(name, held.optimizer), held
    for variable in layer.trainable_variables:
        if id(variable) not in on_cpu:
            # The gradient of a variable that stands in for tables is zero, but its optimizer must still count the step,
            # because the learning rate may follow a schedule.
            keras = [optimizer for optimizer in (given, *known.values()) if _is_keras(optimizer)]
            yield variable, keras[0] if keras else None, None


def _is_keras(optimizer: Any) -> bool:
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return True
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise ExportError(
            "tables are trained by the legacy optimizer that the layer made of this new Keras one: leave "
            "embedding_optimizer out"
        )
    return False
