"""The engine reads tables, searches them, tells the observer of each search, and shows what is served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.control.engine import Engine
from service.control.request_context import Call, Finished
from service.errors import (
    ArtifactError,
    BackendFailure,
    ConfigConflict,
    LabelNotFound,
    MalformedPayload,
    ModelNotFound,
    NotReady,
    TableNotFound,
    VersionNotFound,
)
from service.types import Array, ModelRef, TableInfo
from service.versions.model_config import ModelConfig, Origin
from service.versions.neighbors import Named, Nearest, NeighborAnswer, NeighborQuery, RowSearch
from service.versions.registry import Registry
from tests.conftest import Clock, RecordingObserver
from tests.unit.versions.fakes import servable

M = ModelRef("m")
# Searches two rows.
QUERY = NeighborQuery(rows=Named(ids=np.array([0, 1])))


class FakeTable:
    """Row i is [i]; a search finds row 2 for each query, and fails where a test says so.

    search_s: how far a search moves the clock.
    """

    info = TableInfo("t", 3, 1, "float32", 12, ("f",))

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.search_s = 0.0
        self.failure: Exception | None = None

    def rows(self, ids: Array) -> Array:
        """Returns the ids as numbers."""
        return ids[:, None].astype(np.float32)

    def nearest(self, search: RowSearch) -> Nearest:
        """Returns row 2 for each query."""
        self.clock.now_s += self.search_s
        if self.failure is not None:
            raise self.failure
        count = len(search.queries)
        return Nearest(np.full((count, 1), 2), np.ones((count, 1), np.float32))


class World:
    """An engine of model "m" with versions 1 and 2, a recording observer and a test's clock."""

    def __init__(self, observer: RecordingObserver, clock: Clock) -> None:
        self.observer, self.clock = observer, clock
        self.registry = Registry(lambda model, status: None)
        self.registry.add_model("m")
        self.tables = {version: FakeTable(clock) for version in (1, 2)}
        for version, table in self.tables.items():
            self.registry.start("m", version)
            self.registry.publish(servable(version, tables={"t": table}))
        self.engine = Engine(self.registry, observer, clock)

    def search(self, ref: ModelRef = M, started_s: float | None = None) -> NeighborAnswer:
        return self.engine.neighbors(ref, "t", QUERY, Call("test", "neighbors", started_s))

    @property
    def reported(self) -> list[dict[str, Any]]:
        return self.observer.finished_requests

    def num_leases(self) -> int:
        return sum(holder.num_leases for holder in self.registry._snapshot["m"].available.values())


@pytest.fixture
def world(observer: RecordingObserver, clock: Clock) -> World:
    """See World."""
    return World(observer, clock)


def test_searches_the_latest_version_and_reports_it(world: World) -> None:
    world.tables[2].search_s = 0.125
    assert world.search(started_s=999.5).version == 2
    assert world.reported == [
        {
            "api": "test",
            "method": "neighbors",
            "model": "m",
            "version": 2,
            "signature": "neighbors",
            "error": None,
            "seconds": 0.625,
            "run_seconds": 0.125,
            "rows": 2,
            "is_control": False,
        }
    ]
    assert world.num_leases() == 0


def test_a_failed_search_is_reported_with_its_error(world: World) -> None:
    world.tables[2].failure = BackendFailure("hidden")
    with pytest.raises(BackendFailure):
        world.search()
    (report,) = world.reported
    assert (report["error"], report["version"], report["rows"]) == (world.tables[2].failure, 2, 0)
    assert world.num_leases() == 0


@pytest.mark.parametrize(
    ("ref", "error", "model"),
    [
        (ModelRef("x"), ModelNotFound, ""),
        (ModelRef("m", 9), VersionNotFound, "m"),
        (ModelRef("m", label="x"), LabelNotFound, "m"),
        (ModelRef("x", label="x"), LabelNotFound, ""),
    ],
)
def test_what_is_not_found_is_reported_once_under_names_that_exist(
    world: World, ref: ModelRef, error: type[Exception], model: str
) -> None:
    with pytest.raises(error):
        world.search(ref)
    (report,) = world.reported
    assert isinstance(report["error"], error)
    assert (report["model"], report["version"], report["signature"], report["rows"]) == (model, None, "", 0)
    assert world.num_leases() == 0


def test_a_model_that_is_not_ready_is_reported_under_its_name(world: World) -> None:
    world.registry.add_model("loading")
    with pytest.raises(NotReady):
        world.search(ModelRef("loading"))
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
            "error": error,
            "seconds": 0.0,
            "run_seconds": 0.0,
            "rows": 0,
            "is_control": False,
        }
    ]


@pytest.mark.parametrize(("model", "reported"), [("m", "m"), ("x", ""), ("m\n", ""), ("", ""), ("hidden", "")])
def test_what_could_not_be_parsed_counts_for_a_model_that_is_served(world: World, model: str, reported: str) -> None:
    world.registry.add_model("hidden", is_configured=False)
    world.engine.reject(MalformedPayload("not JSON"), Call("test", started_s=999.0), model=model)
    assert (world.reported[0]["model"], world.reported[0]["seconds"]) == (reported, 1.0)


def test_a_version_is_reported_while_it_is_still_held(world: World) -> None:
    held: list[int] = []
    world.observer.finished = lambda request: held.append(world.num_leases())  # type: ignore[method-assign]
    world.search()
    assert held == [1], "or its series would come back after the version was unloaded"
    assert world.num_leases() == 0


def test_the_lease_is_given_back_even_where_reporting_fails(world: World) -> None:
    def fail(request: Finished) -> None:
        raise RuntimeError("no metrics")

    world.observer.finished = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        world.search()
    assert world.num_leases() == 0


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
