"""The optimizers that a TPU has for embedding tables, with their constants, as classes for users.

Arguments, order, defaults and error texts are those of TensorFlow 2.15, the last version that had these classes: in
tf.compat.v1.tpu.experimental, and MomentumParameters only in tensorflow.python.tpu.tpu_embedding. The update rules are
in model_export.training.

>>> AdagradParameters(0.1, initial_accumulator=0)
Traceback (most recent call last):
  ...
ValueError: Adagrad initial_accumulator must be greater than zero. Received: 0.

Each optimizer of tensorflow.python.tpu.tpu_embedding that is not supported raises an error that names another.

>>> RMSPropParameters(0.1, rho=0.9, momentum=0.0, epsilon=1e-8)
Traceback (most recent call last):
  ...
ValueError: RMSPropParameters is not supported: use AdamParameters, which also divides by the root of a decaying mean \
of squared gradients

Source: tensorflow/python/tpu/tpu_embedding.py at v2.15.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class AdagradParameters:
    """Adagrad: divides the step of each number of a row by the root of the sum of that number's squared gradients.

    Args:
      learning_rate: default for tables whose config or column has no learning rate of its own.
      initial_accumulator: initial value of the sum of squares.
      use_gradient_accumulation: True sums the gradients of an id over the batch and updates its row once; False updates
        the row once per occurrence, in batch order.
      clip_weight_min, clip_weight_max: limits of a row's numbers after its update; None: no limit.
      weight_decay_factor: share of a row subtracted at each of its updates; None: no decay.
      multiply_weight_decay_factor_by_learning_rate: whether the share is multiplied by the learning rate.
      clip_gradient_min, clip_gradient_max: limits of the summed gradient; None: no limit.

    Raises:
      ValueError: initial_accumulator is not positive, gradients shall be clipped but not accumulated, or (not checked
        by TensorFlow) the learning rate is no number or a minimum is above its maximum.
    """

    learning_rate: float
    initial_accumulator: float = 0.1
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        _check_shared(self)
        if self.initial_accumulator <= 0:
            raise ValueError(
                f"Adagrad initial_accumulator must be greater than zero. Received: {self.initial_accumulator}."
            )


@dataclass(frozen=True, slots=True)
class AdamParameters:
    """Adam as a TPU computes it: without bias correction in the first steps; a learning_rate_fn can correct the bias.

    Args:
      beta1, beta2: decay of the first and second moment, in [0, 1).
      epsilon: keeps the divisor away from zero.
      lazy_adam: True updates only the rows of the batch; False updates all others too, with a gradient of zero.
      sum_inside_sqrt: divides by sqrt(v + epsilon^2) rather than sqrt(v) + epsilon.
      The other arguments are those of AdagradParameters.

    Raises:
      ValueError: a number is outside its range, lazy_adam is False without gradient accumulation, or an error of
        AdagradParameters.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        _check_shared(self)
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be between 0. and 1; got {getattr(self, name)}.")
        if self.epsilon <= 0.0:
            raise ValueError(f"epsilon must be positive; got {self.epsilon}.")
        if not self.use_gradient_accumulation and not self.lazy_adam:
            raise ValueError("When disabling Lazy Adam, gradient accumulation must be used.")


@dataclass(frozen=True, slots=True)
class FtrlParameters:
    """FTRL-proximal: L1 regularization makes small numbers exactly zero.

    Args:
      learning_rate_power: at most 0; 0 is a fixed learning rate.
      initial_accumulator_value: initial value of the sum of squares; 0 needs allow_zero_accumulator.
      l1_regularization_strength, l2_regularization_strength: at least 0.
      multiply_linear_by_learning_rate: the linear slot holds linear * learning_rate, which is finite even if the
        learning rate starts at 0.
      beta: adds beta / (2 * learning_rate) to the L2 strength.
      allow_zero_accumulator: lets accumulators be zero.
      The other arguments are those of AdagradParameters.

    Raises:
      ValueError: a number is outside its range, or an error of AdagradParameters.
    """

    learning_rate: float
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    multiply_linear_by_learning_rate: bool = False
    beta: float = 0
    allow_zero_accumulator: bool = False
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        _check_shared(self)
        if self.learning_rate_power > 0.0:
            raise ValueError(f"learning_rate_power must be less than or equal to 0. got {self.learning_rate_power}.")
        for name in ("initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} must be greater than or equal to 0. got {getattr(self, name)}.")

    @property
    def initial_linear_value(self) -> float:
        """Returns the number with which each element of FTRL's slot `linear` starts."""
        return 0.0


@dataclass(frozen=True, slots=True)
class MomentumParameters:
    """Momentum: each step of a row is the learning rate times a decaying sum of the row's gradients.

    Args:
      momentum: decay of the sum, at least 0; a plain number.
      use_nesterov: the step adds the gradient once more to the decayed sum, as TensorFlow's MomentumOptimizer does.
      The other arguments are those of AdagradParameters.

    Raises:
      ValueError: momentum is negative or not finite (not checked by TensorFlow), or an error of AdagradParameters.
    """

    learning_rate: float
    momentum: float
    use_nesterov: bool = False
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        _check_shared(self)
        if not _is_finite_number(self.momentum) or self.momentum < 0.0:
            raise ValueError(f"momentum must be a finite number of at least 0, got {self.momentum!r}")


@dataclass(frozen=True, slots=True)
class StochasticGradientDescentParameters:
    """Plain gradient descent, without slots. Arguments and errors are those of AdagradParameters."""

    learning_rate: float
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        _check_shared(self)


OptimizationParameters: TypeAlias = (
    AdagradParameters | AdamParameters | FtrlParameters | MomentumParameters | StochasticGradientDescentParameters
)


def _check_shared(parameters: OptimizationParameters) -> None:
    rate = parameters.learning_rate
    if not _is_finite_number(rate):
        raise ValueError(
            f"learning_rate must be a finite number, got {rate!r}; one that changes with the step is the "
            "learning_rate_fn of a column or TableConfig"
        )
    clips_gradient = parameters.clip_gradient_min is not None or parameters.clip_gradient_max is not None
    if not parameters.use_gradient_accumulation and clips_gradient:
        # The error text has two spaces before "accumulation", as in TensorFlow, because callers may match the text.
        raise ValueError("When using gradient clipping limits, gradient  accumulation must be enabled.")
    for what in ("clip_weight", "clip_gradient"):
        lower, upper = getattr(parameters, f"{what}_min"), getattr(parameters, f"{what}_max")
        if lower is not None and upper is not None and lower > upper:
            raise ValueError(f"{what}_min is {lower}, above {what}_max {upper}")


def _is_finite_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


class _Refused:
    """Base of parameter classes whose constructor always raises; `advice` names the class to use in its place."""

    advice: ClassVar[str]

    def __init__(self, *args: Any, **named: Any) -> None:
        raise ValueError(f"{type(self).__name__} is not supported: {self.advice}")


class AdagradMomentumParameters(_Refused):
    advice = "use AdagradParameters, or MomentumParameters for the momentum alone"


class FrequencyEstimatorParameters(_Refused):
    """A pseudo-optimizer whose table counts how often each id is looked up; not supported."""

    advice = (
        "it trains no vectors; EmbeddingConfigSpec(profile_data_directory=...) counts how often each id is looked up"
    )


class ProximalAdagradParameters(_Refused):
    advice = "use FtrlParameters, which has l1_regularization_strength and l2_regularization_strength too"


class ProximalYogiParameters(_Refused):
    """Parameters of Yogi, an Adam whose second moment grows slowly; this optimizer is not supported."""

    advice = "use AdamParameters"


class RMSPropParameters(_Refused):
    advice = "use AdamParameters, which also divides by the root of a decaying mean of squared gradients"
