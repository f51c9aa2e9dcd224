"""Optimization parameters are TensorFlow's, and those that nothing implements are refused."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import model_export
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    StochasticGradientDescentParameters,
)

CLASSES: list[Any] = [
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    partial(MomentumParameters, momentum=0.9),
    StochasticGradientDescentParameters,
]
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: getattr(cls, "__name__", "MomentumParameters"))

REQUIRED = inspect.Parameter.empty
WEIGHTS = {
    "use_gradient_accumulation": True,
    "clip_weight_min": None,
    "clip_weight_max": None,
    "weight_decay_factor": None,
    "multiply_weight_decay_factor_by_learning_rate": None,
}
GRADIENTS = {"clip_gradient_min": None, "clip_gradient_max": None}
# Arguments and defaults as inspect.signature printed them on TensorFlow 2.15.1.
SIGNATURES: dict[type, dict[str, Any]] = {
    AdagradParameters: {"learning_rate": REQUIRED, "initial_accumulator": 0.1, **WEIGHTS, **GRADIENTS},
    AdamParameters: {
        "learning_rate": REQUIRED,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "lazy_adam": True,
        "sum_inside_sqrt": True,
        **WEIGHTS,
        **GRADIENTS,
    },
    FtrlParameters: {
        "learning_rate": REQUIRED,
        "learning_rate_power": -0.5,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        **WEIGHTS,
        "multiply_linear_by_learning_rate": False,
        "beta": 0,
        "allow_zero_accumulator": False,
        **GRADIENTS,
    },
    MomentumParameters: {
        "learning_rate": REQUIRED,
        "momentum": REQUIRED,
        "use_nesterov": False,
        **WEIGHTS,
        **GRADIENTS,
    },
    StochasticGradientDescentParameters: {"learning_rate": REQUIRED, **WEIGHTS, **GRADIENTS},
}


@pytest.mark.parametrize("cls", SIGNATURES, ids=lambda cls: cls.__name__)
def test_arguments_order_and_defaults_are_those_of_2_15(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters
    assert [(name, parameter.default) for name, parameter in parameters.items()] == list(SIGNATURES[cls].items())
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@every_class
def test_arguments_are_attributes_that_stay(cls: Any) -> None:
    parameters = cls(np.float32(0.5), clip_weight_max=2.0)
    assert (parameters.learning_rate, parameters.clip_weight_max, parameters.clip_weight_min) == (0.5, 2.0, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters.learning_rate = 1.0


def test_ftrl_starts_its_linear_slot_from_zero() -> None:
    assert FtrlParameters(0.1).initial_linear_value == 0.0


NOT_NEGATIVE = ("initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength")
NOT_LAZY = {"lazy_adam": False, "use_gradient_accumulation": False}
TEXTS_OF_2_15: list[tuple[type, dict[str, Any], str]] = [
    *(
        (
            AdagradParameters,
            {"initial_accumulator": number},
            f"Adagrad initial_accumulator must be greater than zero. Received: {number}.",
        )
        for number in (0, -1.5)
    ),
    *(
        (AdamParameters, {name: number}, f"{name} must be between 0. and 1; got {number}.")
        for name, number in (("beta1", 1.0), ("beta1", -0.1), ("beta2", 1.5))
    ),
    (AdamParameters, {"epsilon": 0.0}, "epsilon must be positive; got 0.0."),
    (AdamParameters, NOT_LAZY, "When disabling Lazy Adam, gradient accumulation must be used."),
    (FtrlParameters, {"learning_rate_power": 0.5}, "learning_rate_power must be less than or equal to 0. got 0.5."),
    *((FtrlParameters, {name: -1.5}, f"{name} must be greater than or equal to 0. got -1.5.") for name in NOT_NEGATIVE),
]


@pytest.mark.parametrize(("cls", "arguments", "text"), TEXTS_OF_2_15)
def test_a_number_out_of_range_gets_the_text_of_2_15(cls: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cls(0.1, **arguments)


@every_class
@pytest.mark.parametrize("limit", ["clip_gradient_min", "clip_gradient_max"])
def test_gradients_are_clipped_only_when_accumulated(cls: Any, limit: str) -> None:
    text = "^When using gradient clipping limits, gradient  accumulation must be enabled.$"
    with pytest.raises(ValueError, match=text):
        cls(0.1, use_gradient_accumulation=False, **{limit: 1.0})
    assert getattr(cls(0.1, **{limit: 1.0}), limit) == 1.0


@pytest.mark.parametrize("edge", [{"beta1": 0.0}, {"beta2": 0.0}])
def test_the_edges_of_adam_are_allowed(edge: dict[str, float]) -> None:
    assert AdamParameters(0.1, **edge).beta1 in (0.0, 0.9)


@every_class
@pytest.mark.parametrize(
    "rate", [lambda step: 0.1, "0.1", True, float("nan"), None], ids=["function", "text", "bool", "nan", "none"]
)
def test_a_learning_rate_that_is_no_number_is_refused(cls: Any, rate: Any) -> None:
    with pytest.raises(ValueError, match="learning_rate must be a finite number"):
        cls(rate)


@every_class
@pytest.mark.parametrize("what", ["clip_weight", "clip_gradient"])
def test_limits_that_cross_are_refused(cls: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what}_min is 2.0, above {what}_max 1.0$"):
        cls(0.1, **{f"{what}_min": 2.0, f"{what}_max": 1.0})
    cls(0.1, **{f"{what}_min": 1.0, f"{what}_max": 1.0})


@pytest.mark.parametrize("momentum", [-0.5, float("nan"), float("inf"), "0.9", None, True])
def test_a_momentum_that_is_no_number_or_negative_is_refused(momentum: Any) -> None:
    with pytest.raises(ValueError, match="^momentum must be a finite number of at least 0, got "):
        MomentumParameters(0.1, momentum)


# The names of all *Parameters classes in tensorflow/python/tpu/tpu_embedding.py of TensorFlow 2.15.1.
OF_2_15 = [
    "AdagradMomentumParameters",
    "AdagradParameters",
    "AdamParameters",
    "FrequencyEstimatorParameters",
    "FtrlParameters",
    "MomentumParameters",
    "ProximalAdagradParameters",
    "ProximalYogiParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
]
REFUSED = model_export._REFUSED.split()


def test_every_class_of_2_15_is_trained_or_refused() -> None:
    supported = [name for name in model_export.__all__ if name.endswith("Parameters")]
    assert sorted(supported + REFUSED) == OF_2_15


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("arguments", [(), (0.1,), (0.1, 0.9, 0.0, 1e-8)])
def test_a_refused_class_says_what_to_use(name: str, arguments: tuple[float, ...]) -> None:
    cls = getattr(model_export, name)
    text = f"{name} is not supported: {cls.advice}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cls(*arguments)
    # The advice names classes that exist.
    named = re.findall(r"\w+Parameters|EmbeddingConfigSpec", cls.advice)
    assert named and set(named) <= set(model_export.__all__)
