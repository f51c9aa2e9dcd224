"""The update rules of five optimizers (Adagrad, Adam, FTRL, Momentum, SGD) for rows of a table and their slots.

Source: tensorflow/core/protobuf/tpu/optimization_parameters.proto at v2.15.1 describes how a TPU's rules differ from
TensorFlow's CPU kernels; weight decay is the decoupled one of Loshchilov and Hutter (arXiv 1711.05101); FTRL is that
of McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
)
from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class RowGradient:
    """Gradients of rows of a table; a row may occur several times.

    rows: [N] int64, rows of the table. values: [N, D].
    """

    rows: Any
    values: Any

    @staticmethod
    def of(gradient: Any, variable: Any) -> RowGradient:
        if isinstance(gradient, tf.IndexedSlices):
            return RowGradient(tf.cast(gradient.indices, tf.int64), gradient.values)
        return RowGradient(tf.range(variable.shape[0], dtype=tf.int64), gradient)

    def scaled(self, factor: Any | None) -> RowGradient:
        if factor is None:
            return self
        return RowGradient(self.rows, self.values * tf.cast(factor, self.values.dtype))

    def occurrences(self) -> Occurrences:
        rows, position = tf.unique(self.rows)
        counts = tf.math.bincount(position, minlength=tf.size(rows), dtype=tf.int32)
        # rank[i] counts the occurrences of the same row that come before occurrence i in the batch.
        order = tf.argsort(position, stable=True)
        starts = tf.cumsum(counts, exclusive=True)
        places = tf.range(tf.size(position)) - tf.gather(starts, tf.gather(position, order))
        rank = tf.scatter_nd(order[:, tf.newaxis], places, tf.shape(position))
        return Occurrences(rows, position, rank, tf.reduce_max(tf.concat([[0], counts], 0)))

    def summed(self) -> RowGradient:
        rows, position = tf.unique(self.rows)
        return RowGradient(rows, tf.math.unsorted_segment_sum(self.values, position, tf.size(rows)))


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of rows in a gradient, grouped by row and numbered.

    rows: [U] int64, distinct. position: [N] int32, index into rows. rank: [N] int32, 0 for a row's first occurrence.
    rounds: scalar int32, the largest number of occurrences of a row.
    """

    rows: Any
    position: Any
    rank: Any
    rounds: Any


def apply_gradient(
    parameters: OptimizationParameters,
    variable: Any,
    slots: tuple[Any, ...],
    gradient: RowGradient,
    rate: Any,
    clipping_limit: float | None,
) -> Any:
    rate = tf.cast(rate, variable.dtype.base_dtype)
    state = (variable, *slots)
    if not parameters.use_gradient_accumulation:
        rows, values = _one_by_one(parameters, state, _limited(gradient, clipping_limit), rate)
        return _store(state, rows, values)
    summed = _clipped(_limited(gradient.summed(), clipping_limit), parameters)
    if isinstance(parameters, AdamParameters) and not parameters.lazy_adam:
        dense = tf.scatter_nd(summed.rows[:, tf.newaxis], summed.values, tf.shape(variable, tf.int64))
        values = updated_rows(parameters, tuple(tf.identity(each) for each in state), dense, rate)
        return tf.group(*(each.assign(value, read_value=False) for each, value in zip(state, values, strict=True)))
    current = tuple(tf.gather(each, summed.rows) for each in state)
    return _store(state, summed.rows, updated_rows(parameters, current, summed.values, rate))


def updated_rows(
    parameters: OptimizationParameters, state: tuple[Any, ...], gradient: Any, rate: Any
) -> tuple[Any, ...]:
    """Returns the new values of some rows of a table and of its slots after one step of the optimizer.

    Args:
      state: rows of the table, then of each slot, each [R, D].
      gradient: [R, D].
      rate: learning rate, scalar.
    """
    weights, *slots = state
    if parameters.weight_decay_factor:
        factor = parameters.weight_decay_factor
        weights -= weights * (factor * rate if parameters.multiply_weight_decay_factor_by_learning_rate else factor)
    match parameters:
        case AdagradParameters():
            weights, slots = _adagrad(weights, slots, gradient, rate)
        case AdamParameters():
            weights, slots = _adam(parameters, weights, slots, gradient, rate)
        case FtrlParameters():
            weights, slots = _ftrl(parameters, weights, slots, gradient, rate)
        case MomentumParameters():
            weights, slots = _momentum(parameters, weights, slots, gradient, rate)
        case _:
            weights -= rate * gradient
    return _between(weights, parameters.clip_weight_min, parameters.clip_weight_max), *slots


def _adagrad(weights: Any, slots: list[Any], gradient: Any, rate: Any) -> tuple[Any, list[Any]]:
    accumulator = slots[0] + gradient * gradient
    return weights - rate * gradient / tf.sqrt(accumulator), [accumulator]


def _adam(
    parameters: AdamParameters, weights: Any, slots: list[Any], gradient: Any, rate: Any
) -> tuple[Any, list[Any]]:
    m = parameters.beta1 * slots[0] + (1 - parameters.beta1) * gradient
    v = parameters.beta2 * slots[1] + (1 - parameters.beta2) * gradient * gradient
    if parameters.sum_inside_sqrt:
        divisor = tf.sqrt(v + parameters.epsilon**2)
    else:
        divisor = tf.sqrt(v) + parameters.epsilon
    return weights - rate * m / divisor, [m, v]


def _ftrl(
    parameters: FtrlParameters, weights: Any, slots: list[Any], gradient: Any, rate: Any
) -> tuple[Any, list[Any]]:
    accumulator = slots[0] + gradient * gradient
    old, new = _power(slots[0], parameters), _power(accumulator, parameters)
    l1, l2 = parameters.l1_regularization_strength, parameters.l2_regularization_strength
    if parameters.multiply_linear_by_learning_rate:
        # All terms of FTRL's formula are multiplied by the learning rate here, so that a rate of 0 causes no division
        # by 0. Without multiply_linear_by_learning_rate, the formula divides by the rate.
        linear = slots[1] + rate * gradient - (new - old) * weights
        threshold = l1 * rate
        quadratic = new + parameters.beta + 2 * l2 * rate
    else:
        linear = slots[1] + gradient - (new - old) / rate * weights
        threshold = tf.constant(l1, linear.dtype)
        quadratic = (new + parameters.beta) / rate + 2 * l2
    shrunk = tf.sign(linear) * threshold - linear
    return tf.where(tf.abs(linear) > threshold, shrunk / quadratic, 0), [accumulator, linear]


def _momentum(
    parameters: MomentumParameters, weights: Any, slots: list[Any], gradient: Any, rate: Any
) -> tuple[Any, list[Any]]:
    momenta = parameters.momentum * slots[0] + gradient
    step = gradient + parameters.momentum * momenta if parameters.use_nesterov else momenta
    return weights - rate * step, [momenta]


def _power(accumulator: Any, parameters: FtrlParameters) -> Any:
    if parameters.learning_rate_power == -0.5:
        return tf.sqrt(accumulator)
    return tf.pow(accumulator, -parameters.learning_rate_power)


def _one_by_one(
    parameters: OptimizationParameters, state: tuple[Any, ...], gradient: RowGradient, rate: Any
) -> tuple[Any, tuple[Any, ...]]:
    # Gradients of the same row are applied in rounds: round k applies the k-th gradient of each row that has at least k
    # gradients. The rounds update a copy of the batch's rows, which is stored in the table once, so the cost of a round
    # depends on its number of rows only.
    found = gradient.occurrences()

    def one_round(number: Any, *current: Any) -> tuple[Any, ...]:
        chosen = tf.where(tf.equal(found.rank, number))[:, 0]
        positions = tf.gather(found.position, chosen)
        now = tuple(tf.gather(each, positions) for each in current)
        after = updated_rows(parameters, now, tf.gather(gradient.values, chosen), rate)
        places = positions[:, tf.newaxis]
        stored = (tf.tensor_scatter_nd_update(each, places, rows) for each, rows in zip(current, after, strict=True))
        return number + 1, *stored

    first = tuple(tf.gather(each, found.rows) for each in state)
    _, *last = tf.while_loop(lambda number, *_: number < found.rounds, one_round, (tf.constant(0), *first))
    return found.rows, tuple(last)


def _store(state: tuple[Any, ...], rows: Any, values: tuple[Any, ...]) -> Any:
    return tf.group(
        *(tf.compat.v1.scatter_update(each, rows, value) for each, value in zip(state, values, strict=True))
    )


def _limited(gradient: RowGradient, limit: float | None) -> RowGradient:
    if limit is None:
        return gradient
    return RowGradient(gradient.rows, tf.clip_by_value(gradient.values, -limit, limit))


def _clipped(gradient: RowGradient, parameters: OptimizationParameters) -> RowGradient:
    return RowGradient(
        gradient.rows, _between(gradient.values, parameters.clip_gradient_min, parameters.clip_gradient_max)
    )


def _between(values: Any, lower: float | None, upper: float | None) -> Any:
    if lower is not None:
        values = tf.maximum(values, lower)
    return values if upper is None else tf.minimum(values, upper)
