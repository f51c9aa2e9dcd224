"""Fixtures of the model_export tests: short timings of adopted models, and a loader of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="package", autouse=True)
def short_timings() -> Iterator[None]:
    """Shortens each timing of an adopted signature from 60 to 2 ms, because no test looks at measured speeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.process.trial._TURN_S", 0.002)
        yield


@pytest.fixture(scope="module")
def loaded(tf: Any) -> Callable[[Path], Any]:
    """Returns a function that loads the {serve} graph of a version into TensorFlow, once for the tests of a file."""
    return cache(lambda artifact: tf.saved_model.load(str(artifact), tags=["serve"]))
