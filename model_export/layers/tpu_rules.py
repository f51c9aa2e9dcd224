"""Trains a layer's tables on a CPU as a TPU would update them, for optimizers of tf.tpu.experimental.embedding.

TensorFlow applies these optimizers on a TPU only; on a CPU the layer merely creates their slots. The rules are in
training/table_updates.py, which EmbeddingEstimator uses too.
"""

from __future__ import annotations

from typing import Any

from model_export.errors import ExportError
from model_export.layers.introspection import TableVariables
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    OptimizationParameters,
    StochasticGradientDescentParameters,
)
from model_export.tensorflow_setup import tf
from model_export.training.row_gradients import RowGradient
from model_export.training.table_updates import apply_gradient

embedding = tf.tpu.experimental.embedding

# Names of each optimizer's slots, in the order that training/table_updates.py expects.
_SLOTS: dict[type, tuple[str, ...]] = {
    StochasticGradientDescentParameters: (),
    AdagradParameters: ("accumulators",),
    AdamParameters: ("momenta", "velocities"),
    FtrlParameters: ("accumulators", "linears"),
}


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
    """Returns the present learning rate of a tf.tpu optimizer; if the rate is a callable, its result."""
    return optimizer.learning_rate() if callable(optimizer.learning_rate) else optimizer.learning_rate


def optimization_parameters(optimizer: Any) -> OptimizationParameters:
    """Returns the constants of a tf.tpu optimizer; the learning rate is 0 if the optimizer has a callable for it."""
    shared = {
        "learning_rate": 0.0 if callable(optimizer.learning_rate) else optimizer.learning_rate,
        "use_gradient_accumulation": optimizer.use_gradient_accumulation,
        "clip_weight_min": optimizer.clip_weight_min,
        "clip_weight_max": optimizer.clip_weight_max,
        "weight_decay_factor": optimizer.weight_decay_factor,
        "multiply_weight_decay_factor_by_learning_rate": optimizer.multiply_weight_decay_factor_by_learning_rate,
        "clip_gradient_min": optimizer.clip_gradient_min,
        "clip_gradient_max": optimizer.clip_gradient_max,
    }
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
            return FtrlParameters(
                learning_rate_power=optimizer.learning_rate_power,
                l1_regularization_strength=optimizer.l1_regularization_strength,
                l2_regularization_strength=optimizer.l2_regularization_strength,
                beta=optimizer.beta,
                initial_accumulator_value=optimizer.initial_accumulator_value,
                multiply_linear_by_learning_rate=optimizer.multiply_linear_by_learning_rate,
                allow_zero_accumulator=optimizer.allow_zero_accumulator,
                **shared,
            )
        case embedding.SGD():
            return StochasticGradientDescentParameters(**shared)
    raise ExportError(f"optimizer {type(optimizer).__name__} can not train tables on a CPU")
