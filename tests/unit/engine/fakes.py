"""Servables without a model, for tests of the code that holds and exchanges servables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from service.engine.servable import Servable
from service.types import Array, SignatureSpec, Tensors, TensorSpec


class FakeBackend:
    """A backend that returns given outputs and records its calls."""

    def __init__(self, answer: Callable[[Tensors], dict[str, Array]] | None = None) -> None:
        self.runs: list[tuple[str, dict[str, Array], tuple[str, ...]]] = []
        self.closed = 0
        self._answer = answer or (lambda inputs: {"y": inputs["x"] * 2, "z": inputs["x"] * 3})

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Records the call and returns the requested outputs."""
        self.runs.append((signature_name, dict(inputs), outputs))
        answer = self._answer(inputs)
        return {name: answer[name] for name in outputs}

    def takes(self, seconds: float, clock: Any) -> None:
        """Makes each later run advance a clock."""
        answer = self._answer

        def slow(inputs: Tensors) -> dict[str, Array]:
            clock.now_s += seconds
            return answer(inputs)

        self._answer = slow

    def close(self) -> None:
        """Counts the calls of close()."""
        self.closed += 1


def predict_spec(name: str = "serving_default", **inputs: TensorSpec) -> SignatureSpec:
    """Returns a predict signature with outputs y and z, and the input x unless others are given."""
    return SignatureSpec(
        name=name,
        kind="predict",
        method_name="tensorflow/serving/predict",
        inputs=inputs or {"x": TensorSpec("x", "float32", (None,))},
        outputs={n: TensorSpec(n, "float32", (None,)) for n in ("y", "z")},
    )


def servable(version: int = 1, name: str = "m", backend: Any = None, **more: Any) -> Servable:
    """Returns a servable with one predict signature."""
    spec = predict_spec()
    return Servable(name, version, {spec.name: spec}, {spec.name: backend or FakeBackend()}, **more)


X = np.array([1.0, 2.0], np.float32)
