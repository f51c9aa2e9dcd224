"""The hook warns of a global step that stands still, but not of one that grows after or before it is fetched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tensorflow.python.platform import tf_logging

from model_export.estimator.session_training import StepRateHook
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


def warnings_of(fetched: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how often the hook warns where the step was fetched with these values."""
    told: list[str] = []
    # TensorFlow logs only the first five warnings of a process, so the test replaces the function that logs them.
    monkeypatch.setattr(tf_logging, "log_first_n", lambda level, text, n, *values: told.append(text))
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        hook = StepRateHook(every_n_steps=1000)
        hook.begin()
        for number in fetched:
            context = v1.train.SessionRunContext(hook.before_run(None), session)
            hook.after_run(context, v1.train.SessionRunValues(number, None, None))
    return sum("has not been increased" in text for text in told)


def test_a_growing_step_that_was_read_before_or_after_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings_of([1, 1, 2, 3, 3, 4, 6, 6, 7], monkeypatch) == 0


def test_a_step_that_stands_still_is_one(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings_of([1, 1, 1], monkeypatch) == 1
