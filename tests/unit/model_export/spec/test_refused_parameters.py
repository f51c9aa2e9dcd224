"""Optimizers of TensorFlow 2.15 that can not train a table here say so in one sentence, whatever their arguments."""

from __future__ import annotations

import re

import pytest

import model_export

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
REFUSED = [*model_export._REFUSED]


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
