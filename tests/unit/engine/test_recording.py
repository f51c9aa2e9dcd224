"""Each request is sampled once for the log, and exactly the sampled requests are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.recording import Draw
from service.types import ModelRef
from service.wire.http_api import API
from tests.conftest import RecordingObserver, serving

TOY = ModelRef("toy")
INPUTS = {"user": np.array([1, 2])}


class Kept:
    """A recorder that keeps the requests that it is given."""

    def __init__(self, *draws: float) -> None:
        self.left = list(draws)
        self.draw = Draw(0.5, lambda: self.left.pop(0))
        self.predicts: list[dict[str, Any]] = []

    def predicted(self, spec: Any, version: int, **more: Any) -> None:
        """See Recorder."""
        self.predicts.append({"signature": spec.name, "version": version, **more})

    def inferred(self, spec: Any, version: int, **more: Any) -> None:
        """See Recorder."""
        raise AssertionError("no Examples here")

    def answered(self, *request: Any) -> None:
        """See Recorder."""
        raise AssertionError("the core answers nothing here")

    def note_dropped(self, count: int) -> None:
        """See Recorder."""
        raise AssertionError("the core drops nothing here")


def ask(engine: Engine) -> None:
    """Runs a lookup of the toy model, as the HTTP or gRPC server does."""
    with engine.bind(TOY, "lookup", Call(API)) as bound:
        bound.run(INPUTS)


def test_chosen_requests_are_kept(toy_model: Path, observer: RecordingObserver) -> None:
    kept = Kept(0.9, 0.1, 0.9, 0.2)
    engine = Engine(serving(toy_model), observer, recorders={"toy": kept})
    for _ in range(4):
        ask(engine)
    assert kept.left == []
    assert len(kept.predicts) == 2
    first = kept.predicts[0]
    assert (first["signature"], first["version"], first["output_filter"]) == ("lookup", 1, ())
    np.testing.assert_array_equal(first["inputs"]["user"], [1, 2])
    np.testing.assert_array_equal(first["outputs"]["user"], [[1, 10], [2, 20]])
    # Each of the four requests was answered and counted once, whether or not it was recorded.
    assert len(observer.finished_requests) == 4
    assert {request["error"] for request in observer.finished_requests} == {None}


def test_other_models_are_not_drawn_for(toy_model: Path, observer: RecordingObserver) -> None:
    kept = Kept()
    ask(Engine(serving(toy_model), observer, recorders={"other": kept}))
    assert kept.predicts == []
