"""Each request with tf.Examples is sampled once for the log, and exactly the sampled requests are recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.inference import REGRESS_METHOD
from service.engine.recording import Draw
from service.engine.registry import Registry
from service.types import ModelRef
from service.wire.http_api import API
from tests.conftest import RecordingObserver
from tests.unit.engine.fakes import EXAMPLES, FakeNative, lengths, regress_spec, servable

M = ModelRef("m")


class Kept:
    """A recorder that keeps the requests that it is given."""

    def __init__(self, *draws: float) -> None:
        self.left = list(draws)
        self.draw = Draw(0.5, lambda: self.left.pop(0))
        self.requests: list[dict[str, Any]] = []

    def inferred(self, spec: Any, version: int, **more: Any) -> None:
        """See Recorder."""
        self.requests.append({"signature": spec.name, "version": version, **more})

    def answered(self, *request: Any) -> None:
        """See Recorder."""
        raise AssertionError("the core answers nothing here")

    def note_dropped(self, count: int) -> None:
        """See Recorder."""
        raise AssertionError("the core drops nothing here")


@pytest.fixture
def registry() -> Registry:
    """A registry of version 1 of model m, whose answers are the lengths of the examples."""
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(servable(signatures={"serving_default": regress_spec()}, native=FakeNative(lengths)))
    return registry


def ask(engine: Engine) -> None:
    """Runs a Regress of the model, as the HTTP or gRPC server does."""
    with engine.bind(M, "", Call(API)) as bound:
        bound.infer(REGRESS_METHOD, EXAMPLES)


def test_chosen_requests_are_kept(registry: Registry, observer: RecordingObserver) -> None:
    kept = Kept(0.9, 0.1, 0.9, 0.2)
    engine = Engine(registry, observer, recorders={"m": kept})
    for _ in range(4):
        ask(engine)
    assert kept.left == []
    assert len(kept.requests) == 2
    first = kept.requests[0]
    assert (first["signature"], first["version"]) == ("serving_default", 1)
    np.testing.assert_array_equal(first["examples"], EXAMPLES)
    np.testing.assert_array_equal(first["result"].values, [2, 4])
    # Each of the four requests was answered and counted once, whether or not it was recorded.
    assert len(observer.finished_requests) == 4
    assert {request["error"] for request in observer.finished_requests} == {None}


def test_other_models_are_not_drawn_for(registry: Registry, observer: RecordingObserver) -> None:
    kept = Kept()
    ask(Engine(registry, observer, recorders={"other": kept}))
    assert kept.requests == []
