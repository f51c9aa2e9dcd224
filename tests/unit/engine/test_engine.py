"""The engine binds and runs requests, tells the observer, and lets clients know of a failure only what they may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.call import Call, Finished
from service.engine.engine import Engine
from service.engine.model_config import ModelConfig, Origin
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.errors import (
    ArtifactError,
    BackendFailure,
    ConfigConflict,
    DeadlineExceeded,
    IdOutOfRange,
    InputMismatch,
    LabelNotFound,
    MalformedPayload,
    ModelNotFound,
    NotReady,
    PayloadTooLarge,
    SignatureNotFound,
    TableNotFound,
    UnknownOutput,
    VersionNotFound,
)
from service.types import Array, ModelRef, SignatureSpec, TableInfo, Tensors, TensorSpec
from tests.conftest import Clock, RecordingObserver
from tests.unit.engine.fakes import FakeBackend, X, servable

M = ModelRef("m")


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
        self.backends = {1: FakeBackend(), 2: FakeBackend()}
        for version, backend in self.backends.items():
            self.registry.start("m", version)
            self.registry.publish(servable(version, backend=backend, tables={"t": FakeTable()}))
        self.engine = Engine(self.registry, observer, clock)

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
    with world.engine.bind(M, "", Call("test", "predict", 999.5)) as bound:
        world.clock.now_s += 0.25
        world.backends[2].takes(0.125, world.clock)
        outputs = bound.run({"x": X})
        assert (bound.model, bound.version, bound.spec.name) == ("m", 2, "serving_default")
    assert outputs["y"].tolist() == [2, 4]
    assert outputs["z"].tolist() == [3, 6]
    assert world.reported == [
        {
            "api": "test",
            "method": "predict",
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
        bound.run({"x": X})
    assert len(world.backends[2].runs) == 1


@pytest.mark.parametrize("chosen", [("y",), ("z", "y"), ()])
def test_the_output_filter_reaches_the_backend(world: World, chosen: tuple[str, ...]) -> None:
    with world.engine.bind(M, "", Call("test")) as bound:
        outputs = bound.run({"x": X}, chosen)
    assert tuple(outputs) == (chosen or ("y", "z"))
    assert world.backends[2].runs[0][2] == (chosen or ("y", "z"))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("f",), r"^output tensor alias not found in signature: f Outputs expected to be in the set \{y,z\}\.$"),
        (("y", "y"), "^duplicate output tensor alias: y$"),
    ],
)
def test_a_bad_output_filter_is_refused_before_the_run(world: World, chosen: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnknownOutput, match=message), world.engine.bind(M, "", Call("test")) as bound:
        bound.run({"x": X}, chosen)
    assert world.backends[2].runs == []


def test_a_request_that_does_not_fit_never_reaches_the_backend(world: World) -> None:
    with pytest.raises(InputMismatch), world.engine.bind(M, "", Call("test")) as bound:
        bound.run({})
    assert world.backends[2].runs == []
    assert isinstance(world.reported[0]["error"], InputMismatch)
    assert world.num_leases() == 0


@pytest.mark.parametrize(("deadline_s", "is_late"), [(999.0, True), (1000.0, True), (1000.5, False), (None, False)])
def test_work_whose_deadline_has_passed_is_not_begun(world: World, deadline_s: float | None, is_late: bool) -> None:
    with world.engine.bind(M, "", Call("test", deadline_s=deadline_s)) as bound:
        if is_late:
            with pytest.raises(DeadlineExceeded):
                bound.run({"x": X})
        else:
            bound.run({"x": X})
    assert len(world.backends[2].runs) == (0 if is_late else 1)


def fail_with(error: Exception) -> FakeBackend:
    """Returns a backend that raises this error in each run."""

    def answer(inputs: Tensors) -> dict[str, Array]:
        raise error

    return FakeBackend(answer)


def one_version(observer: RecordingObserver, clock: Clock, backend: FakeBackend) -> Engine:
    """Returns an engine that has a single version of model "m"."""
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(servable(1, backend=backend))
    return Engine(registry, observer, clock)


@pytest.mark.parametrize("cause", [KeyError("secret"), TypeError("secret"), MemoryError("secret")])
def test_a_backends_own_failure_is_hidden_and_its_cause_kept(
    observer: RecordingObserver, clock: Clock, cause: Exception
) -> None:
    engine = one_version(observer, clock, fail_with(cause))
    with pytest.raises(BackendFailure) as caught, engine.bind(M, "", Call("test")) as bound:
        bound.run({"x": X})
    assert "secret" not in caught.value.message
    assert caught.value.__cause__ is cause
    assert observer.finished_requests[0]["error"] is caught.value


def test_a_backends_word_on_the_request_is_passed_on(observer: RecordingObserver, clock: Clock) -> None:
    error = IdOutOfRange("id 7")
    engine = one_version(observer, clock, fail_with(error))
    with pytest.raises(IdOutOfRange) as caught, engine.bind(M, "", Call("test")) as bound:
        bound.run({"x": X})
    assert caught.value is error


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


def test_an_answer_over_the_limit_is_refused_before_it_is_made() -> None:
    spec = SignatureSpec(
        "lookup",
        "lookup",
        "",
        {name: TensorSpec(name, "int64", (None,), is_optional=True) for name in ("user", "other")},
        {
            "user": TensorSpec("user", "float32", (None, 8)),
            "more": TensorSpec("more", "float32", (None, 2)),
            "other": TensorSpec("other", "float32", (None, 100)),
        },
        output_ids={"user": ("user",), "more": ("user",), "other": ("other",)},
    )
    assert spec.row_bytes == {"user": 32, "more": 8, "other": 400}
    backend = FakeBackend(lambda inputs: {"user": X, "more": X, "other": X})
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(Servable("m", 1, {"lookup": spec}, {"lookup": backend}))
    engine = Engine(registry, RecordingObserver(), max_response_bytes=400)
    with engine.bind(M, "lookup", Call("test")) as bound:
        with pytest.raises(PayloadTooLarge, match="440 bytes for 11 rows, this server's limit is 400 bytes"):
            bound.run({"user": np.zeros(11, np.int64)})
        with pytest.raises(PayloadTooLarge, match="432 bytes"):
            bound.run({"user": np.zeros(1, np.int64), "other": np.zeros(1, np.int64)}, ("user", "other"))
    assert backend.runs == []
    # Only the outputs of this answer count: those of the features that were sent, or that the request's filter names.
    for inputs, outputs in ((("user",), ()), (("user", "other"), ("more", "user"))):
        with engine.bind(M, "lookup", Call("test")) as bound:
            bound.run({name: np.zeros(10, np.int64) for name in inputs}, outputs)
            assert engine.admission.held()["m"].bytes == 400
    assert len(backend.runs) == 2


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
