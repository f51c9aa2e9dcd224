"""Steps per second, logged and summarized, without a false alarm about a step that stands still."""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf


class StepRateHook(tf.compat.v1.train.StepCounterHook):  # type: ignore[misc]
    """StepCounterHook, which warns of a global step that was not increased only where that is so.

    TensorFlow fetches the step with the run that increases it, so it gets the value from before or after, and takes
    "after, then before" for a step that stands still. Over two runs the values of a growing step always differ.
    """

    _last_global_step: int | None
    _earlier: int | None = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a step with the global step of the run before, which the base class compares with."""
        newest, self._last_global_step = self._last_global_step, self._earlier
        super().after_run(run_context, run_values)
        self._earlier = newest
