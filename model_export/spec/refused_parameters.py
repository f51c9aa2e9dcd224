"""Optimizers of tensorflow.python.tpu.tpu_embedding that are not supported: each raises an error that names another.

>>> RMSPropParameters(0.1, rho=0.9, momentum=0.0, epsilon=1e-8)
Traceback (most recent call last):
  ...
ValueError: RMSPropParameters is not supported: use AdamParameters, which also divides by the root of a decaying mean \
of squared gradients

Source: tensorflow/python/tpu/tpu_embedding.py at v2.15.1.
"""

from __future__ import annotations

from typing import Any, ClassVar


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
