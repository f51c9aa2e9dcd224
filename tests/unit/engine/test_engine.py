"""The engine binds requests, runs those with tf.Examples in the core, and tells the observer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.call import Call, Finished
from service.engine.engine import Engine
from service.engine.inference import CLASSIFY_METHOD, REGRESS_METHOD, Regression
from service.engine.model_config import ModelConfig, Origin
from service.engine.registry import Registry
from service.errors import (
    ArtifactError,
    BackendFailure,
    ConfigConflict,
    DeadlineExceeded,
    IdOutOfRange,
    LabelNotFound,
    MalformedPayload,
    ModelNotFound,
    NotReady,
    ServiceError,
    SignatureNotFound,
    TableNotFound,
    UnfitSignature,
    Unimplemented,
    VersionNotFound,
)
from service.types import Array, ModelRef, TableInfo, Tensors
from tests.conftest import Clock, RecordingObserver
from tests.unit.engine.fakes import EXAMPLES, FakeNative, lengths, regress_spec, servable

M = ModelRef("m")
REGRESS = {"serving_default": regress_spec()}


class FakeTable:
    """Row i is [i]."""

    info = TableInfo("t", 3, 1, "float32", 12, ("f",))

    def rows(self, ids: Array) -> Array:
        """Returns the ids as numbers."""
        return ids[:, None].astype(np.float32)


class World:
    """An engine of model "m" with versions 1 and 2, a recording observer and a test's clock."""

    def __init__(self, observer: RecordingObserver, clock: Clock) -> None:
        self.observer, self.clock = observer, clock
        self.registry = Registry(lambda model, status: None)
        self.registry.add_model("m")
        self.natives = {1: FakeNative(self.outputs), 2: FakeNative(self.outputs)}
        self.run_s = 0.0
        for version, native in self.natives.items():
            self.registry.start("m", version)
            self.registry.publish(servable(version, signatures=REGRESS, native=native, tables={"t": FakeTable()}))
        self.engine = Engine(self.registry, observer, clock)

    def outputs(self, inputs: Tensors) -> dict[str, Array]:
        self.clock.now_s += self.run_s
        return lengths(inputs)

    @property
    def reported(self) -> list[dict[str, Any]]:
        return self.observer.finished_requests

    def num_leases(self) -> int:
        return sum(holder.num_leases for holder in self.registry._snapshot["m"].available.values())


@pytest.fixture
def world(observer: RecordingObserver, clock: Clock) -> World:
    """See World."""
    return World(observer, clock)


def test_runs_the_latest_version_and_reports_it(world: World) -> None:
    with world.engine.bind(M, "", Call("test", "regress", 999.5)) as bound:
        world.clock.now_s += 0.25
        world.run_s = 0.125
        result = bound.infer(REGRESS_METHOD, EXAMPLES)
        assert (bound.model, bound.version, bound.spec.name) == ("m", 2, "serving_default")
    assert isinstance(result, Regression) and result.values.tolist() == [2, 4]
    assert [(name, outputs) for name, _, outputs in world.natives[2].runs] == [("serving_default", ("outputs",))]
    assert world.reported == [
        {
            "api": "test",
            "method": "regress",
            "model": "m",
            "version": 2,
            "signature": "serving_default",
            "kind": "predict",
            "error": None,
            "seconds": 0.875,
            "run_seconds": 0.125,
            "rows": 2,
        }
    ]
    assert world.num_leases() == 0


def test_a_bound_signature_stays_with_its_version_while_another_comes(world: World) -> None:
    with world.engine.bind(M, "", Call("test")) as bound:
        world.registry.start("m", 3)
        world.registry.publish(servable(3))
        bound.infer(REGRESS_METHOD, EXAMPLES)
    assert len(world.natives[2].runs) == 1


def test_a_request_that_does_not_fit_never_reaches_the_core(world: World) -> None:
    with pytest.raises(UnfitSignature), world.engine.bind(M, "", Call("test")) as bound:
        bound.infer(CLASSIFY_METHOD, EXAMPLES)
    assert world.natives[2].runs == []
    assert isinstance(world.reported[0]["error"], UnfitSignature)
    assert world.num_leases() == 0


@pytest.mark.parametrize(("deadline_s", "is_late"), [(999.0, True), (1000.0, True), (1000.5, False), (None, False)])
def test_work_whose_deadline_has_passed_is_not_begun(world: World, deadline_s: float | None, is_late: bool) -> None:
    with world.engine.bind(M, "", Call("test", deadline_s=deadline_s)) as bound:
        if is_late:
            with pytest.raises(DeadlineExceeded):
                bound.infer(REGRESS_METHOD, EXAMPLES)
        else:
            bound.infer(REGRESS_METHOD, EXAMPLES)
    assert len(world.natives[2].runs) == (0 if is_late else 1)


@pytest.mark.parametrize("error", [IdOutOfRange("id 7"), BackendFailure("hidden")])
def test_the_cores_refusal_is_passed_on(observer: RecordingObserver, clock: Clock, error: ServiceError) -> None:
    def refuse(inputs: Tensors) -> dict[str, Array]:
        raise error

    engine = one_version(observer, clock, native=FakeNative(refuse))
    with pytest.raises(type(error)) as caught, engine.bind(M, "", Call("test")) as bound:
        bound.infer(REGRESS_METHOD, EXAMPLES)
    assert caught.value is error
    assert observer.finished_requests[0]["error"] is error


def test_a_version_that_the_core_does_not_run_says_why(observer: RecordingObserver, clock: Clock) -> None:
    engine = one_version(observer, clock, not_run={"serving_default": "it is too new"})
    with pytest.raises(Unimplemented, match="^it is too new$"), engine.bind(M, "", Call("test")) as bound:
        bound.infer(REGRESS_METHOD, EXAMPLES)


def one_version(observer: RecordingObserver, clock: Clock, **more: Any) -> Engine:
    """Returns an engine that has a single version of model "m"."""
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(servable(1, signatures=REGRESS, **more))
    return Engine(registry, observer, clock)


@pytest.mark.parametrize(
    ("ref", "signature", "error", "model"),
    [
        (ModelRef("x"), "", ModelNotFound, ""),
        (ModelRef("m", 9), "", VersionNotFound, "m"),
        (ModelRef("m", label="x"), "", LabelNotFound, "m"),
        (ModelRef("x", label="x"), "", LabelNotFound, ""),
        (M, "nope", SignatureNotFound, "m"),
    ],
)
def test_what_can_not_be_bound_is_reported_once_under_names_that_exist(
    world: World, ref: ModelRef, signature: str, error: type[Exception], model: str
) -> None:
    with pytest.raises(error):
        world.engine.bind(ref, signature, Call("test"))
    (report,) = world.reported
    assert isinstance(report["error"], error)
    assert (report["model"], report["version"], report["signature"], report["rows"]) == (model, None, "", 0)
    assert world.num_leases() == 0


def test_a_model_that_is_not_ready_is_reported_under_its_name(world: World) -> None:
    world.registry.add_model("loading")
    with pytest.raises(NotReady):
        world.engine.bind(ModelRef("loading"), "", Call("test"))
    assert world.reported[0]["model"] == "loading"


def test_a_request_that_could_not_be_parsed_is_counted(world: World) -> None:
    error = MalformedPayload("not JSON")
    world.engine.reject(error, Call("test", "predict"))
    assert world.reported == [
        {
            "api": "test",
            "method": "predict",
            "model": "",
            "version": None,
            "signature": "",
            "kind": "lookup",
            "error": error,
            "seconds": 0.0,
            "run_seconds": 0.0,
            "rows": 0,
        }
    ]


@pytest.mark.parametrize(("model", "reported"), [("m", "m"), ("x", ""), ("m\n", ""), ("", ""), ("hidden", "")])
def test_what_could_not_be_parsed_counts_for_a_model_that_is_served(world: World, model: str, reported: str) -> None:
    world.registry.add_model("hidden", is_configured=False)
    world.engine.reject(MalformedPayload("not JSON"), Call("test", started_s=999.0), model=model)
    assert (world.reported[0]["model"], world.reported[0]["seconds"]) == (reported, 1.0)


def test_a_request_lasts_from_when_it_is_bound_where_nobody_says_since_when_it_is_there(world: World) -> None:
    with world.engine.bind(M, "", Call("test")):
        world.clock.now_s += 0.25
    assert world.reported[0]["seconds"] == 0.25


def test_a_version_is_reported_while_it_is_still_held(world: World) -> None:
    held: list[int] = []
    world.observer.finished = lambda request: held.append(world.num_leases())  # type: ignore[method-assign]
    with world.engine.bind(M, "", Call("test")):
        pass
    assert held == [1], "or its series would come back after the version was unloaded"
    assert world.num_leases() == 0


def test_the_lease_is_given_back_even_where_reporting_fails(world: World) -> None:
    def fail(request: Finished) -> None:
        raise RuntimeError("no metrics")

    world.observer.finished = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError), world.engine.bind(M, "", Call("test")):
        pass
    assert world.num_leases() == 0


def test_an_error_of_the_wire_between_bind_and_run_is_reported(world: World) -> None:
    with pytest.raises(MalformedPayload), world.engine.bind(M, "", Call("test")):
        raise MalformedPayload("no tensor")
    assert isinstance(world.reported[0]["error"], MalformedPayload)
    assert world.reported[0]["rows"] == 0


def test_describes_a_servable(world: World) -> None:
    assert world.engine.describe(M).version == 2
    description = world.engine.describe(ModelRef("m", 1))
    assert (description.name, description.version, list(description.signatures)) == ("m", 1, ["serving_default"])
    with pytest.raises(VersionNotFound):
        world.engine.describe(ModelRef("m", 9))


def test_reads_tables(world: World) -> None:
    assert [info.name for info in world.engine.tables(M)] == ["t"]
    rows, version = world.engine.table_rows(M, "t", np.array([2]))
    assert (rows.tolist(), version) == ([[2.0]], 2)
    with pytest.raises(TableNotFound, match='^Model "m" has no table "x". Tables: t.$'):
        world.engine.table_rows(M, "x", np.array([2]))
    assert world.num_leases() == 0


def test_tells_what_is_served_and_what_is_wrong(world: World) -> None:
    assert world.engine.models() == ["m"]
    assert world.engine.is_ready
    assert world.engine.problems() == {}
    assert [s.version for s in world.engine.statuses("m")] == [2, 1]
    world.registry.add_model("late")
    world.registry.start("late", 1)
    world.registry.fail("late", 1, ArtifactError("no file"))
    assert world.engine.is_ready
    assert world.engine.problems() == {"late": "version 1 is END: no file"}
    assert world.engine.require_ready(M) == "m"
    world.registry.drain()
    assert not world.engine.is_ready
    with pytest.raises(NotReady, match="shutting down"):
        world.engine.require_ready(M)


def test_deadlines_are_measured_on_the_engines_clock(world: World) -> None:
    assert world.engine.clock is world.clock


def test_a_reload_goes_to_who_knows_the_models(observer: RecordingObserver, clock: Clock) -> None:
    asked: list[tuple[list[ModelConfig], float | None, Origin]] = []
    registry = Registry(lambda model, status: None)
    config = ModelConfig("m", "/m")
    engine = Engine(
        registry, observer, clock, reload=lambda new, end_s, origin: asked.append((list(new), end_s, origin))
    )
    engine.reload([config], 7.0)
    engine.reload([config], origin="operator")
    assert asked == [([config], 7.0, "client"), ([config], None, "operator")]
    with pytest.raises(ConfigConflict, match="^The models of this server are fixed.$"):
        Engine(registry, observer, clock).reload([config])
