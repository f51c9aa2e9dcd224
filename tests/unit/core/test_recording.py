"""Each request is drawn for once, whichever of the two paths answers it, and as many are kept as were chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from service.direct.http_bodies import DirectHttp

from service.core.engine import Engine
from service.core.recording import Draw
from service.core.types import ModelRef
from service.transports.http.calls import API
from tests.conftest import RecordingObserver, serving

TOY = ModelRef("toy")
PLAIN = b'{"features":{"user":[1,2]}}'
INPUTS = {"user": np.array([1, 2])}


class Kept:
    """A recorder that keeps what it is given."""

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


def ask(engine: Engine, direct: DirectHttp) -> bool:
    """Sends a lookup as a transport does, the direct path first; returns whether that answered."""
    if direct.lookup(TOY, PLAIN, engine.clock()) is not None:
        return True
    # gRPC tries the direct path again in a thread, where it may take longer.
    if direct.lookup(TOY, PLAIN, engine.clock()) is not None:
        return True
    with engine.bind(TOY, "lookup", api=API) as bound:
        bound.run(INPUTS)
    return False


def test_a_chosen_request_leaves_the_direct_path_and_is_kept(toy_model: Path, observer: RecordingObserver) -> None:
    kept = Kept(0.9, 0.1, 0.9, 0.2)
    engine = Engine(serving(toy_model), observer, recorders={"toy": kept})
    direct = DirectHttp(engine, API, strict_json=False)
    assert [ask(engine, direct) for _ in range(4)] == [True, False, True, False]
    assert kept.left == []
    assert len(kept.predicts) == 2
    first = kept.predicts[0]
    assert (first["signature"], first["version"], first["output_filter"]) == ("lookup", 1, ())
    np.testing.assert_array_equal(first["inputs"]["user"], [1, 2])
    np.testing.assert_array_equal(first["outputs"]["user"], [[1, 10], [2, 20]])
    # Each was answered, and counted, once.
    assert len(observer.finished_requests) == 4
    assert {request["error"] for request in observer.finished_requests} == {None}


def test_what_the_direct_path_leaves_alone_is_not_drawn_for_twice(toy_model: Path, observer: RecordingObserver) -> None:
    kept = Kept(0.9, 0.1)
    engine = Engine(serving(toy_model), observer, recorders={"toy": kept})
    direct = DirectHttp(engine, API, strict_json=False)
    # The direct path draws, and then finds an id that it does not answer.
    assert direct.lookup(TOY, b'{"features":{"user":[99]}}', engine.clock()) is None
    assert kept.left == [0.1]
    with engine.bind(TOY, "lookup", api=API) as bound:
        bound.run(INPUTS)
    assert (kept.left, kept.predicts) == ([0.1], [])


def test_other_models_are_not_drawn_for(toy_model: Path, observer: RecordingObserver) -> None:
    kept = Kept()
    engine = Engine(serving(toy_model), observer, recorders={"other": kept})
    assert ask(engine, DirectHttp(engine, API, strict_json=False))
    with engine.bind(TOY, "lookup", api=API) as bound:
        bound.run(INPUTS)
    assert kept.predicts == []
