"""Trains a model whose tables have other optimizers than its dense layers, with the update rules of a TPU.

TensorFlow applies the optimizers of tf.tpu.experimental.embedding on a TPU only; on a CPU the layer merely creates
their slots. The rules are in training/table_updates.py, which EmbeddingEstimator uses too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from model_export.errors import ExportError
from model_export.layers import introspection
from model_export.layers.introspection import TableVariables
from model_export.layers.tpu_embedding import TPUEmbedding
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    OptimizationParameters,
    StochasticGradientDescentParameters,
)
from model_export.tensorflow_setup import tf
from model_export.training.table_updates import RowGradient, apply_gradient

embedding = tf.tpu.experimental.embedding

# Names of each optimizer's slots, in the order that training/table_updates.py expects.
_SLOTS: dict[type, tuple[str, ...]] = {
    StochasticGradientDescentParameters: (),
    AdagradParameters: ("accumulators",),
    AdamParameters: ("momenta", "velocities"),
    FtrlParameters: ("accumulators", "linears"),
}


def _settings(optimizer: Any, parameters: type) -> dict[str, Any]:
    # Returns the settings that an optimizer of tf.tpu has under the same names as its parameters here.
    names = [one.name for one in fields(parameters) if one.name != "learning_rate"]
    return {name: getattr(optimizer, name) for name in names}


def apply_tpu_optimizer(table: TableVariables, gradient: Any) -> None:
    """Updates a table and its slots with the gradient of one batch: IndexedSlices or a [V, D] tensor.

    Raises:
      ExportError: the table has no optimizer, or a Keras optimizer holds its slots and must be given.
    """
    if table.optimizer is None:
        raise ExportError(f"table {table.parameters.name!r} has no optimizer, so it can not be trained")
    parameters = optimization_parameters(table.optimizer)
    missing = [name for name in _SLOTS[type(parameters)] if name not in table.slots]
    if missing:
        raise ExportError(
            f"slots {missing} of table {table.parameters.name!r} belong to a Keras optimizer: give it as "
            "embedding_optimizer"
        )
    slots = tuple(table.slots[name] for name in _SLOTS[type(parameters)])
    rows = RowGradient.of(gradient, table.parameters)
    apply_gradient(parameters, table.parameters, slots, rows, learning_rate(table.optimizer), None)


def learning_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate() if callable(optimizer.learning_rate) else optimizer.learning_rate


def optimization_parameters(optimizer: Any) -> OptimizationParameters:
    """Returns the constants of a tf.tpu optimizer; the learning rate is 0 if the optimizer has a callable for it."""
    rate = 0.0 if callable(optimizer.learning_rate) else optimizer.learning_rate
    shared = {"learning_rate": rate, **_settings(optimizer, StochasticGradientDescentParameters)}
    match optimizer:
        case embedding.Adagrad():
            return AdagradParameters(initial_accumulator=optimizer.initial_accumulator_value, **shared)
        case embedding.Adam():
            return AdamParameters(
                beta1=optimizer.beta_1,
                beta2=optimizer.beta_2,
                epsilon=optimizer.epsilon,
                lazy_adam=optimizer.lazy_adam,
                sum_inside_sqrt=optimizer.sum_inside_sqrt,
                **shared,
            )
        case embedding.FTRL():
            return FtrlParameters(rate, **_settings(optimizer, FtrlParameters))
        case embedding.SGD():
            return StochasticGradientDescentParameters(**shared)
    raise ExportError(f"optimizer {type(optimizer).__name__} can not train tables on a CPU")


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
