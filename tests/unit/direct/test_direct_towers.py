"""Predicts from bytes to bytes are those of the general path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service.direct.predict import WIRE_FORMAT, DirectPredict

from service.core.engine import Engine
from service.core.errors import InvalidRequest, ServiceError
from service.core.registry import Registry
from service.core.servable import Servable
from service.loading.loader import ServableLoader
from service.loading.tower_batching import TowerBatcher
from service.transports.grpc.methods import service_methods
from service.transports.grpc.paths import PREDICT
from tests.conftest import RecordingObserver
from tests.tower_model import write_tower_model
from tests.tower_zoo import SIGNATURE, write_zoo_model
from tests.unit.graph.test_claims import SIZE, TAGS, described, tags_request
from tests.unit.graph.test_tower import CUT, int64, random_inputs
from tests.unit.transports.test_grpc_methods import predict_request

pytestmark = pytest.mark.tf


@dataclass(frozen=True)
class Served:
    """A model, and both paths to it."""

    servable: Servable
    engine: Engine
    observer: RecordingObserver

    def general(self, data: bytes, *, as_content: bool = False) -> bytes | None:
        """Returns the general path's answer, None for an error."""
        try:
            return service_methods(self.engine, as_content=as_content)[PREDICT](data, None)
        except ServiceError:
            return None

    def direct(self, data: bytes, *, as_content: bool = False, may_wait: bool = True) -> bytes | None:
        """Returns the direct path's answer, None where it leaves the request to the general path."""
        return DirectPredict(self.engine, "grpc")(data, None, as_content=as_content, may_wait=may_wait)


@pytest.fixture(scope="module")
def served(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Model "m", its graphs cut where they can be."""
    yield from serve(write_tower_model(tf, tmp_path_factory.mktemp("towers")))


@pytest.fixture(scope="module")
def tags(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A tower on means by tf.math.segment_mean, which ends with the last row that has a tag."""
    folder = write_zoo_model(tf, "tags", tmp_path_factory.mktemp("tags"), SIZE)
    described(folder, {"tags": ("t02", TAGS)}, {})
    yield from serve(folder)


def serve(folder: Path) -> Iterator[Served]:
    """Loads a version as version 1 of model "m"."""
    registry = Registry(lambda name, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    servable = ServableLoader(frozenset({"serve"}), "auto", 1)("m", 1, folder)
    registry.publish(servable)
    observer = RecordingObserver()
    yield Served(servable, Engine(registry, observer), observer)
    servable.close()


def names(served: Served) -> set[str]:
    """Returns the predict signatures that have a shortcut."""
    return {
        name
        for wire_format, name in served.servable.shortcuts
        if wire_format == WIRE_FORMAT and served.servable.signatures[name].kind == "predict"
    }


def test_signatures_that_need_whole_features_alone_have_one(served: Served) -> None:
    assert names(served) == {"serving_default", "rows", "share"}


@pytest.mark.parametrize("name", sorted(CUT))
def test_answers_are_equal_to_the_byte(served: Served, name: str) -> None:
    random = np.random.default_rng(4)
    for rows in (1, 2, 7, 64):
        data = predict_request(random_inputs(name, rows, random), signature_name=name).SerializeToString()
        for as_content in (False, True):
            answer = served.direct(data, as_content=as_content)
            assert (answer is not None) == (name in names(served))
            assert answer in (None, served.general(data, as_content=as_content))


@pytest.mark.parametrize(
    "inputs",
    [
        {"user": int64(4), "tags__values": int64(0), "tags__row_splits": int64(0, 1)},
        {"user": int64(0), "tags__values": int64(0, 3), "tags__row_splits": int64(0, 2)},
        {"user": int64(0), "tags__values": int64(0), "tags__row_splits": int64(0, 2)},
        {"user": int64(0, 1), "tags__values": int64(0), "tags__row_splits": int64(0, 1)},
        {"user": int64(0)},
        {"user": int64(), "tags__values": int64(), "tags__row_splits": int64(0)},
    ],
    ids=["a bad id", "a bad tag", "splits that end elsewhere", "rows that differ", "a feature left out", "no rows"],
)
def test_what_is_unusual_is_left_to_the_general_path(served: Served, inputs: dict[str, Any]) -> None:
    assert served.direct(predict_request(inputs).SerializeToString()) is None


def test_rows_behind_the_last_that_has_a_tag_are_refused_as_tensorflow_does(tags: Served) -> None:
    with_gaps = predict_request(tags_request(0, 2, 0, 30), signature_name=SIGNATURE).SerializeToString()
    answer = tags.direct(with_gaps)
    assert answer is not None and answer == tags.general(with_gaps)
    for lengths in ((3, 1, 0), (0, 0), (0,)):
        data = predict_request(tags_request(*lengths), signature_name=SIGNATURE).SerializeToString()
        assert tags.direct(data) is None
        with pytest.raises(InvalidRequest, match="ConcatV2|ConcatOp"):
            service_methods(tags.engine, predict_directly=DirectPredict(tags.engine, "grpc"))[PREDICT](data, None)


def test_a_graph_runs_where_nothing_may_wait_once_it_is_known_to_be_quick(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No other test has so many rows.
    inputs = random_inputs("serving_default", 200, np.random.default_rng(1))
    data = predict_request(inputs).SerializeToString()
    monkeypatch.setattr(served.engine.directly, "_quick_limits", (1 << 31, 4 << 20, 3600.0))
    assert served.direct(data, may_wait=False) is None
    answer = served.direct(data)
    assert answer is not None
    assert served.direct(data, may_wait=False) == answer
    monkeypatch.setattr(served.engine.directly, "_quick_limits", (1 << 31, 4 << 20, 0.0))
    assert served.direct(data, may_wait=False) is None


def test_those_that_came_together_are_answered_as_each_by_itself(served: Served) -> None:
    random = np.random.default_rng(6)
    requests = []
    for i in range(90):
        name = ("serving_default", "rows", "share", "serving_default")[i % 4]
        rows = int(random.integers(1, 5))
        message = predict_request(random_inputs(name, rows, random), signature_name=name)
        requests.append(message.SerializeToString())
    # One with an id that no table has.
    bad_id = {"user": int64(4), "tags__values": int64(0), "tags__row_splits": int64(0, 1)}
    requests.insert(40, predict_request(bad_id).SerializeToString())
    alone = [served.direct(data) for data in requests]
    assert [i for i, answer in enumerate(alone) if answer is None] == [40]
    predict = DirectPredict(served.engine, "grpc")
    for _ in range(3):
        begun = [predict.begin(data, None, as_content=False) for data in requests]
        answers = {i: predict.finish(begun[i]) for i in random.permutation(len(requests)).tolist()}  # type: ignore[arg-type]
        assert [answers[i] for i in range(len(requests))] == alone


def test_a_graph_that_fails_fails_for_its_own_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    messages = [predict_request(random_inputs("serving_default", rows, random)) for rows in (1, 2, 3)]
    requests = [message.SerializeToString() for message in messages]
    alone = [served.direct(data) for data in requests]
    tower = served.servable.shortcuts[WIRE_FORMAT, "serving_default"]
    run = tower._run_dense  # type: ignore[attr-defined]

    def fail_for_two(vectors: Any) -> Any:
        if len(vectors[0]) == 2:
            raise InvalidRequest("two")
        return run(vectors)

    monkeypatch.setattr(tower, "_run_dense", fail_for_two)
    predict = DirectPredict(served.engine, "grpc")
    begun = [predict.begin(data, None, as_content=False) for data in requests]
    assert [predict.finish(one) for one in begun if one] == [alone[0], None, alone[2]]


def test_it_is_counted_as_a_predict(served: Served) -> None:
    inputs = random_inputs("serving_default", 3, np.random.default_rng(2))
    served.direct(predict_request(inputs).SerializeToString())
    last = served.observer.finished_requests[-1]
    assert (last["kind"], last["signature"], last["rows"], last["error"]) == ("predict", "serving_default", 3, None)


def test_requests_that_are_run_together_take_no_shortcut(tf: Any, tmp_path: Path) -> None:
    folder = write_tower_model(tf, tmp_path)
    servable = ServableLoader(frozenset({"serve"}), "auto", 1, tower_batch_rows=64)("m", 1, folder)
    together = {n for n, backend in servable.backends.items() if isinstance(backend, TowerBatcher)}
    assert "serving_default" in together
    assert not together & {name for _, name in servable.shortcuts}
    servable.close()
