"""A caller may use only what the engine's guard permits: it checks each method, and hides models as if absent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.access.callers import RIGHTS, Grant, Right, Rule
from service.access.guarded_engine import OPEN, RIGHT_OF, GuardedEngine
from service.engine.engine import Engine
from service.engine.neighbors import Named, Nearest, NeighborQuery
from service.engine.registry import Registry
from service.engine.request_context import Call
from service.errors import ModelNotFound, PermissionDenied, ServiceError
from service.types import ModelRef, TableInfo
from tests.conftest import Clock, RecordingObserver
from tests.unit.engine.fakes import FakeBackend, servable


class FakeTable:
    """Row i is [i]."""

    info = TableInfo("t", 3, 1, "float32", 12, ("f",))

    def rows(self, ids: Any) -> Any:
        """Returns the ids as numbers."""
        return ids[:, None].astype(np.float32)

    def nearest(self, search: Any) -> Nearest:
        """Returns row 2 for each query."""
        return Nearest(np.full((1, 1), 2), np.ones((1, 1), np.float32))


class FakeComparisons:
    """Compares versions and finds all of them equal."""

    def of_request(self, model: str, old: int, new: int) -> dict[str, Any]:
        """Returns an empty comparison."""
        return {}

    def rows_of_request(self, model: str, table: str, old: int, new: int, ids: Any) -> tuple[Any, bool]:
        """Returns cosines of 1."""
        return np.ones(len(ids)), True


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def engine(observer: RecordingObserver, clock: Clock) -> Engine:
    """Returns an engine with version 1 of the models "m" and "secret"."""
    registry = Registry(lambda model, status: None)
    registry.add_model("secret")
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(servable(1, backend=FakeBackend(), tables={"t": FakeTable()}))
    return Engine(
        registry,
        observer,
        clock,
        reload=lambda models, deadline_s, origin: None,
        set_label=lambda model, label, version: None,
        pin=lambda model, version: None,
        compare=FakeComparisons(),
    )


def guarded(engine: Engine, observer: RecordingObserver, *rules: Rule) -> GuardedEngine:
    absent = Engine(Registry(lambda model, status: None), observer, engine.clock)
    return GuardedEngine(engine, absent, lambda: Grant("")).of(Grant("a", rules))


# Method of the engine -> the right that a caller needs on the model, and a call of the method; reload needs the right
# on all models.
CALLS: dict[str, tuple[Right, Callable[[Engine, ModelRef], Any]]] = {
    "table_rows": ("predict", lambda engine, ref: engine.table_rows(ref, "t", np.array([2]))),
    "describe": ("metadata", lambda engine, ref: engine.describe(ref)),
    "require_ready": ("metadata", lambda engine, ref: engine.require_ready(ref)),
    "neighbors": (
        "predict",
        lambda engine, ref: engine.neighbors(
            ref, "t", NeighborQuery(rows=Named(ids=np.array([1]))), Call("grpc", "Predict")
        ),
    ),
    "statuses": ("metadata", lambda engine, ref: engine.statuses(ref.name)),
    "tables": ("metadata", lambda engine, ref: engine.tables(ref)),
    "row_origin": ("predict", lambda engine, ref: engine.row_origin(ref, "t", 2)),
    "diff": ("admin", lambda engine, ref: engine.diff(ref.name, 1, 2)),
    "drift": ("predict", lambda engine, ref: engine.drift(ref.name, "t", 1, 2, np.array([2]))),
    "set_label": ("admin", lambda engine, ref: engine.set_label(ref.name, "stable", 1)),
    "pin": ("admin", lambda engine, ref: engine.pin(ref.name, 1)),
    "reload": ("admin", lambda engine, ref: engine.reload([])),
}


def test_a_stranger_is_told_by_table_rows_and_not_before(engine: Engine, observer: RecordingObserver) -> None:
    nobody = guarded(engine, observer)
    assert not nobody.may_wait(ModelRef("m"), "t")
    assert nobody.searches_by_signature(ModelRef("m"))
    with pytest.raises(ServiceError):
        nobody.table_rows(ModelRef("m"), "t", np.array([1]))


def test_every_public_method_of_the_engine_is_guarded() -> None:
    public = {name for name, _ in inspect.getmembers(Engine) if not name.startswith("_")}
    # GuardedEngine must have each public method itself, because an inherited method would check no right.
    assert public <= vars(GuardedEngine).keys()
    assert {*RIGHT_OF, *OPEN} <= public | {"admission", "searches", "clock", "tracing"}
    assert {name: right for name, (right, _) in CALLS.items() if name != "reload"}.items() <= RIGHT_OF.items()


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("method", CALLS)
def test_a_right_gives_its_methods_and_no_others(
    engine: Engine, observer: RecordingObserver, method: str, right: Right
) -> None:
    needed, call = CALLS[method]
    with_right = guarded(engine, observer, Rule(("*",), frozenset({right})))
    if right == needed:
        call(with_right, ModelRef("m"))
    else:
        with pytest.raises(PermissionDenied) as caught:
            call(with_right, ModelRef("m"))
        assert needed in caught.value.message


@pytest.mark.parametrize("method", [name for name in CALLS if name != "reload"])
@pytest.mark.parametrize("ref", [ModelRef("{}"), ModelRef("{}", 1), ModelRef("{}", None, "stable")], ids=str)
def test_a_hidden_model_is_told_from_an_absent_one_by_nothing(
    engine: Engine, observer: RecordingObserver, method: str, ref: ModelRef
) -> None:
    told = {}
    for name in ("secret", "absent"):
        observer.finished_requests.clear()
        seen = guarded(engine, observer, Rule(("m",), frozenset(RIGHTS)))
        with pytest.raises(ServiceError) as caught:
            CALLS[method][1](seen, ModelRef(name, ref.version, ref.label))
        kind = type(caught.value), caught.value.message.replace(name, "NAME")
        told[name] = kind, [{**one, "error": None} for one in observer.finished_requests]
    assert told["secret"] == told["absent"]


def test_lists_hold_what_the_caller_sees(engine: Engine, observer: RecordingObserver) -> None:
    all_seen = guarded(engine, observer, Rule(("*",), frozenset({"metadata"})))
    one_seen = guarded(engine, observer, Rule(("m",), frozenset({"metadata"})))
    none_seen = guarded(engine, observer, Rule(("m", "secret"), frozenset({"predict", "admin"})))
    for seen, names in ((all_seen, ["m", "secret"]), (one_seen, ["m"]), (none_seen, [])):
        assert seen.models() == list(seen.all_statuses()) == names
        assert list(seen.problems()) == [name for name in names if name == "secret"]
        assert not seen.is_ready


def test_reload_wants_the_right_on_all_models(engine: Engine, observer: RecordingObserver) -> None:
    with pytest.raises(PermissionDenied):
        guarded(engine, observer, Rule(("m", "secret"), frozenset(RIGHTS))).reload([])


def test_a_refused_search_is_counted_under_its_model(engine: Engine, observer: RecordingObserver) -> None:
    seen = guarded(engine, observer, Rule(("m",), frozenset({"metadata"})))
    with pytest.raises(PermissionDenied):
        CALLS["neighbors"][1](seen, ModelRef("m"))
    (counted,) = observer.finished_requests
    assert (counted["model"], counted["error"].code, counted["method"]) == ("m", "PERMISSION_DENIED", "Predict")


def test_a_model_that_does_not_exist_is_not_found_by_who_may_see_all(
    engine: Engine, observer: RecordingObserver
) -> None:
    with pytest.raises(ModelNotFound):
        guarded(engine, observer, Rule(("*",), frozenset(RIGHTS))).describe(ModelRef("absent"))
