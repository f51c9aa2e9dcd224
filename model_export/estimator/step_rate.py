"""Logs the training steps per second, without TensorFlow's false warning that the global step does not increase."""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf


class StepRateHook(tf.compat.v1.train.StepCounterHook):  # type: ignore[misc]
    """A StepCounterHook that warns only if the global step does not increase over two runs of the session.

    TensorFlow fetches the step in the same run that increments it, so it gets the value before or after the increment.
    "After" followed by "before" then looks like a step that did not increase. Over two runs the values always differ if
    the step increases.
    """

    _last_global_step: int | None
    _earlier: int | None = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares the global steps of two session runs, so that a warning is logged only if the step stood still."""
        newest, self._last_global_step = self._last_global_step, self._earlier
        super().after_run(run_context, run_values)
        self._earlier = newest
