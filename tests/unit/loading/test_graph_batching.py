"""Decides which signatures are batched, and with the parameters of which file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.engine.batch_scheduler import Scheduler
from service.engine.batcher import Batcher
from service.engine.batching_parameters import BatchingParameters
from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.errors import ArtifactError, DeadlineExceeded, InputMismatch, InvalidRequest
from service.loading.graph_batching import DEFAULT, PER_MODEL_FILE, GraphBatching, create_batching
from service.types import ModelRef
from tests.conftest import Clock, RecordingObserver
from tests.unit.engine.fakes import FakeBackend, predict_spec, servable
from tests.unit.engine.test_batcher import RecordingBatches


def batching(parameters: BatchingParameters = DEFAULT, is_per_model: bool = False) -> GraphBatching:
    """Returns a GraphBatching whose scheduler never starts a thread."""
    scheduler = Scheduler(2, start_thread=lambda name, work: None)
    return GraphBatching(scheduler, parameters, is_per_model, RecordingBatches())


def two_kinds() -> Servable:
    """Returns a servable of two graph signatures on one backend, and a lookup."""
    graph, lookup = FakeBackend(), FakeBackend()
    specs = {name: predict_spec(name) for name in ("a", "b")}
    specs["lookup"] = replace(predict_spec("lookup"), kind="lookup")
    return Servable("m", 1, specs, {"a": graph, "b": graph, "lookup": lookup})


def test_graph_signatures_are_batched_and_lookups_are_not(tmp_path: Path) -> None:
    plain = two_kinds()
    wrapped = batching().wrap(plain, tmp_path)
    assert isinstance(wrapped.backends["a"], Batcher)
    assert wrapped.backends["a"] is wrapped.backends["b"]
    assert wrapped.backends["lookup"] is plain.backends["lookup"]
    wrapped.close()
    graph = plain.backends["a"]
    assert isinstance(graph, FakeBackend)
    assert graph.closed == 1


@pytest.mark.parametrize("text", [None, "max_batch_size { value: 2 }"])
def test_per_model_only_what_has_a_file_is_batched_and_by_it_alone(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / PER_MODEL_FILE).write_text(text)
    common = BatchingParameters(max_batch_size=1)
    backend = batching(common, is_per_model=True).wrap(servable(), tmp_path).backends["serving_default"]
    assert isinstance(backend, Batcher) == (text is not None)
    assert backend.run("serving_default", {"x": np.zeros(2, np.float32)}, ("y",))["y"].shape == (2,)
    if text is not None:
        with pytest.raises(InputMismatch, match="Task size 3 is larger than maximum input batch size 2"):
            backend.run("serving_default", {"x": np.zeros(3, np.float32)}, ("y",))


def test_a_file_of_a_model_counts_only_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("not looked at")
    backend = batching(BatchingParameters(max_batch_size=1)).wrap(servable(), tmp_path).backends["serving_default"]
    assert isinstance(backend, Batcher)


def test_a_model_whose_file_is_broken_does_not_load(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("allowed_batch_sizes: 2")
    with pytest.raises(ArtifactError, match=r"batching_params.pbtxt: Last entry in allowed_batch_sizes must match"):
        batching(is_per_model=True).wrap(servable(), tmp_path)


def test_the_servers_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("max_batch_size { value: 2 }")
    made = create_batching(str(file), False, num_processors=3, observer=RecordingBatches(), clock=Clock())
    assert made.parameters == BatchingParameters(max_batch_size=2)
    none = create_batching("", True, num_processors=3, observer=RecordingBatches(), clock=Clock())
    assert (none.parameters, none.is_per_model) == (DEFAULT, True)


@pytest.mark.parametrize(("data", "text"), [(None, "cannot read .*: No such file"), (b"\xff", "not UTF-8")])
def test_a_servers_file_that_can_not_be_used_is_refused(tmp_path: Path, data: bytes | None, text: str) -> None:
    file = tmp_path / "f"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InvalidRequest, match=text):
        create_batching(str(file), False, num_processors=1, observer=RecordingBatches(), clock=Clock())


def test_the_engine_hands_the_deadline_on(tmp_path: Path) -> None:
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    made = batching(BatchingParameters(batch_timeout_micros=10**9))
    registry.publish(made.wrap(servable(), tmp_path))
    engine = Engine(registry, RecordingObserver(), made.scheduler.clock)
    call = Call("test", deadline_s=engine.clock() + 0.01)
    with engine.bind(ModelRef("m"), "", call) as bound, pytest.raises(DeadlineExceeded, match="batching queue"):
        bound.run({"x": np.zeros(1, np.float32)})
