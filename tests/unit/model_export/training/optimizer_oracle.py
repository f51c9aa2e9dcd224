"""Computes the five optimizers in numpy, from the formulas in the papers and in TensorFlow's protobufs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
)

Occurrences = Sequence[tuple[int, Sequence[float]]]


def initial_slots(parameters: Any, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Returns an optimizer's slots before the first step."""
    match parameters:
        case AdagradParameters():
            return [np.full(shape, parameters.initial_accumulator)]
        case AdamParameters():
            return [np.zeros(shape), np.zeros(shape)]
        case FtrlParameters():
            return [np.full(shape, parameters.initial_accumulator_value), np.zeros(shape)]
        case MomentumParameters():
            return [np.zeros(shape)]
    return []


def step(
    parameters: Any,
    table: np.ndarray[Any, Any],
    slots: list[np.ndarray[Any, Any]],
    gradient: Occurrences,
    *,
    rate: float | None = None,
    clipping_limit: float = np.inf,
) -> None:
    """Updates the table and its slots in place by the gradient of one batch."""
    rate = parameters.learning_rate if rate is None else rate
    if parameters.use_gradient_accumulation:
        summed: dict[int, np.ndarray[Any, Any]] = {}
        for row, values in gradient:
            summed[row] = summed.get(row, np.zeros(table.shape[1])) + np.asarray(values, float)
        if isinstance(parameters, AdamParameters) and not parameters.lazy_adam:
            for row in range(len(table)):
                summed.setdefault(row, np.zeros(table.shape[1]))
        gradient = list(summed.items())
    low = -np.inf if parameters.clip_gradient_min is None else parameters.clip_gradient_min
    high = np.inf if parameters.clip_gradient_max is None else parameters.clip_gradient_max
    for row, values in gradient:
        for column, value in enumerate(values):
            clipped = min(max(min(max(value, -clipping_limit), clipping_limit), low), high)
            _update(parameters, table, slots, (row, column), clipped, rate)


def _update(parameters: Any, table: Any, slots: Any, at: tuple[int, int], g: float, rate: float) -> None:
    decay = parameters.weight_decay_factor or 0.0
    if parameters.multiply_weight_decay_factor_by_learning_rate:
        decay *= rate
    w = table[at] * (1 - decay)
    match parameters:
        case AdagradParameters():
            slots[0][at] += g**2
            w -= rate * g / slots[0][at] ** 0.5
        case AdamParameters():
            slots[0][at] = parameters.beta1 * slots[0][at] + (1 - parameters.beta1) * g
            slots[1][at] = parameters.beta2 * slots[1][at] + (1 - parameters.beta2) * g**2
            v, e = slots[1][at], parameters.epsilon
            w -= rate * slots[0][at] / ((v + e**2) ** 0.5 if parameters.sum_inside_sqrt else v**0.5 + e)
        case FtrlParameters():
            w = _ftrl(parameters, w, slots, at, g, rate)
        case MomentumParameters():
            slots[0][at] = parameters.momentum * slots[0][at] + g
            w -= rate * (g + parameters.momentum * slots[0][at] if parameters.use_nesterov else slots[0][at])
        case _:
            w -= rate * g
    if parameters.clip_weight_min is not None:
        w = max(w, parameters.clip_weight_min)
    if parameters.clip_weight_max is not None:
        w = min(w, parameters.clip_weight_max)
    table[at] = w


def _ftrl(parameters: FtrlParameters, w: float, slots: Any, at: tuple[int, int], g: float, rate: float) -> float:
    # FTRL for one number w of the table: z += g - sigma w, where sigma is the growth of n^p / rate, and n the sum of
    # g^2.
    power = -parameters.learning_rate_power
    old, new = slots[0][at] ** power, (slots[0][at] + g**2) ** power
    slots[0][at] += g**2
    l1, l2 = parameters.l1_regularization_strength, parameters.l2_regularization_strength
    scale = rate if parameters.multiply_linear_by_learning_rate else 1.0
    z = slots[1][at] / scale + g - (new - old) / rate * w
    slots[1][at] = z * scale
    if abs(z) <= l1:
        return 0.0
    return -(z - np.sign(z) * l1) / ((parameters.beta + new) / rate + 2 * l2)
