"""A new list of models is taken as a whole or not at all, by the rules of TensorFlow Serving."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.errors import (
    ArtifactError,
    ConfigConflict,
    DeadlineExceeded,
    InvalidRequest,
    LabelNotFound,
    ModelNotFound,
    NotReady,
    Overloaded,
    ReloadFailed,
    ServiceError,
)
from service.types import ModelRef, State, VersionStatus
from service.versions.loads import LoadRules
from service.versions.model_config import All, ModelConfig, RequestLogConfig, Specific
from service.versions.model_set import ModelSet
from service.versions.registry import Registry
from service.versions.servable import Servable
from tests.unit.versions.fakes import FakeBackend, servable

NO_PLATFORM = (
    "Illegal setting neither ModelServerConfig::model_type (deprecated) nor ModelServerConfig::model_platform, "
    'model name is b; its config needs model_platform: "tensorflow"'
)


class World:
    """Folders of models "a", "b" and "c", and a model set whose loads fail or wait where a test says so."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.broken: set[str] = set()
        self.gates: dict[str, threading.Event] = {}
        self.backends: dict[tuple[str, int], FakeBackend] = {}
        self.registry = Registry(lambda model, status: None)
        self.changes = 0
        self.models = self.model_set()
        for name in "abc":
            self.add(name, 1)

    def model_set(self, *, timeout_s: float = 60.0, allow: bool = False) -> ModelSet:
        return ModelSet(
            self.registry,
            LoadRules(self.load, 0, 60.0),
            poll_interval_s=0.01,
            reload_timeout_s=timeout_s,
            allow_labels_for_unavailable=allow,
            on_change=self.changed,
        )

    def changed(self) -> None:
        self.changes += 1

    def load(self, name: str, version: int, path: Path) -> Servable:
        if name in self.gates:
            assert self.gates[name].wait(30)
        if name in self.broken:
            raise ArtifactError("broken file")
        backend = self.backends[name, version] = FakeBackend()
        return servable(version, name, backend)

    def add(self, name: str, version: int) -> None:
        (self.base / name / str(version)).mkdir(parents=True)

    def config(self, name: str, policy: All | Specific | None = None, **labels: int) -> ModelConfig:
        return ModelConfig(name, str(self.base / name), policy or All(), labels)

    def start(self, *configs: ModelConfig) -> None:
        """Starts the models, and waits until every model has a version that answers."""
        self.models.start(configs)
        until(lambda: self.registry.is_ready)

    def answers(self, name: str, version: int | None = None, label: str | None = None) -> int:
        with self.registry.lease(ModelRef(name, version, label)) as held:
            return held.version

    def trace(self) -> object:
        """Returns all that a client can see of the models: their states, labels and readiness."""
        names = ("a", "b", "c")
        return (
            self.registry.models(),
            self.registry.is_ready,
            [self.registry.labels(name) for name in names],
            [self.registry.all_statuses(name) for name in names],
        )


def until(is_so: Callable[[], bool]) -> None:
    """Waits until threads have made a condition true."""
    pause = threading.Event()
    for _ in range(3000):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Makes a world of three models, each with version 1, none of them served; lets held loads go on at the end."""
    world = World(tmp_path)
    yield world
    for gate in world.gates.values():
        gate.set()
    world.models.stop()


def test_each_model_loads_in_a_thread_of_its_own_and_a_bad_one_blocks_nobody(world: World) -> None:
    world.broken.add("a")
    world.gates["b"] = threading.Event()
    world.models.start([world.config(name) for name in "abc"])
    until(lambda: world.registry.is_available("c"))
    assert world.answers("c") == 1
    for name, state in (("a", State.END), ("b", State.LOADING)):
        until(lambda name=name, state=state: [s.state for s in world.registry.all_statuses(name)] == [state])
    for name in "ab":
        with pytest.raises(NotReady):
            world.answers(name)


def test_a_reload_adds_and_removes_at_once(world: World) -> None:
    world.start(world.config("a"), world.config("b"))
    world.models.reload([world.config("b"), world.config("c")])
    assert world.registry.models() == ["b", "c"]
    assert world.answers("c") == world.answers("b") == 1
    with pytest.raises(ModelNotFound, match=r"^Servable not found for request: Latest\(a\)$"):
        world.answers("a")
    until(lambda: world.backends["a", 1].closed == 1)
    until(lambda: world.registry.statuses("a") == [VersionStatus(1, State.END)])
    assert world.changes == 2


def test_what_is_new_is_out_of_reach_until_all_of_it_is_there(world: World) -> None:
    world.gates["c"] = threading.Event()
    world.start(world.config("a"))
    reload = threading.Thread(target=world.models.reload, args=([world.config("b"), world.config("c")],))
    reload.start()
    until(lambda: world.registry.is_available("b"))
    with pytest.raises(ModelNotFound):
        world.answers("b")
    assert world.answers("a") == 1
    world.gates["c"].set()
    reload.join(30)
    assert [world.answers(name) for name in "bc"] == [1, 1]


def test_a_model_that_was_removed_may_come_back(world: World) -> None:
    world.start(world.config("a"))
    for _ in range(5):
        world.models.reload([])
        assert world.registry.models() == []
        world.models.reload([world.config("a")])
        until(lambda: world.registry.is_available("a"))
        assert world.answers("a") == 1


def test_policies_of_served_models_change_too(world: World) -> None:
    world.add("a", 2)
    world.start(world.config("a"))
    until(lambda: world.registry.is_available("a", 1))
    world.models.reload([world.config("a", Specific(frozenset({1})))])
    until(lambda: not world.registry.is_available("a", 2))
    assert world.answers("a") == 1


def refused(world: World, *configs: ModelConfig, models: ModelSet | None = None) -> ServiceError:
    """Returns the error of a reload, after checking that the reload left no trace."""
    before = world.trace()
    with pytest.raises(ServiceError) as caught:
        (models or world.models).reload(configs)
    assert world.trace() == before
    return caught.value


def test_a_model_that_does_not_load_refuses_the_whole_list(world: World) -> None:
    world.broken.add("c")
    world.start(world.config("a"))
    error = refused(world, world.config("b"), world.config("c"))
    assert isinstance(error, ReloadFailed)
    assert error.message == (
        "1 model(s) did not become available: {{{name: c version: 1} due to error: FAILED_PRECONDITION: broken file}, }"
    )
    assert all(backend.closed for (name, _), backend in world.backends.items() if name != "a")
    world.broken.clear()
    world.models.reload([world.config("c")])
    assert world.answers("c") == 1


def test_a_model_without_a_folder_refuses_it_too(world: World) -> None:
    world.start(world.config("a"))
    error = refused(world, world.config("a"), world.config("nothing"))
    assert isinstance(error, ReloadFailed)
    assert f"{{name: nothing}} due to error: cannot read the folder {world.base / 'nothing'}" in error.message


def test_a_reload_that_takes_too_long_is_taken_back(world: World) -> None:
    world.start(world.config("a"))
    world.gates["b"] = threading.Event()
    before = world.trace()
    with pytest.raises(DeadlineExceeded, match="^Not available in time, so nothing was changed: b$"):
        world.models.reload([world.config("b")], deadline_s=0.0)
    world.gates["b"].set()
    until(lambda: world.trace() == before)
    assert world.answers("a") == 1


def test_a_reload_waits_for_those_that_must_agree_and_is_taken_back_where_they_do_not(world: World) -> None:
    world.start(world.config("a"))
    before = world.trace()
    asked: list[object] = []

    def disagree() -> None:
        # The models of the new list are loaded when the servers are asked to agree, but no request can reach them yet.
        asked.append((world.registry.is_available("b"), world.registry.models()))
        raise ReloadFailed("not everybody can")

    with pytest.raises(ReloadFailed, match="not everybody can"):
        world.models.reload([world.config("b")], agree=disagree)
    assert asked == [(True, ["a"])]
    until(lambda: world.trace() == before)
    world.models.reload([world.config("b")], agree=lambda: asked.append(world.registry.models()))
    assert asked[1:] == [["a"]]
    assert world.registry.models() == ["b"]


def test_a_label_may_only_point_to_a_version_that_is_available(world: World) -> None:
    world.add("a", 2)
    world.start(world.config("a"))
    until(lambda: world.registry.is_available("a", 1))
    world.models.reload([world.config("a", stable=1, canary=2)])
    assert (world.answers("a", label="stable"), world.answers("a", label="canary")) == (1, 2)
    error = refused(world, world.config("a", stable=3))
    assert isinstance(error, ConfigConflict)
    assert error.message == (
        "Request to assign label to version 3 of model a, which is not currently available for inference"
    )
    error = refused(world, world.config("a"), world.config("b", stable=1))
    assert isinstance(error, ConfigConflict), "a model that the same list adds is not there yet"
    world.models.reload([world.config("a", stable=2)])
    assert world.answers("a", label="stable") == 2
    with pytest.raises(LabelNotFound):
        world.answers("a", label="canary")


def test_with_the_flag_only_a_label_that_is_in_use_must_not_move_to_what_is_not_there(world: World) -> None:
    world.models = world.model_set(allow=True)
    world.models.start([world.config("a", stable=1, next=9)])
    until(lambda: world.registry.is_ready)
    assert world.answers("a", label="stable") == 1
    with pytest.raises(ServiceError, match=r"^Servable not found for request: Specific\(a, 9\); versions served: 1$"):
        world.answers("a", label="next")
    assert isinstance(refused(world, world.config("a", stable=9)), ConfigConflict)
    world.models.reload([world.config("a", next=9, later=10)])
    assert world.registry.labels("a") == {"next": 9, "later": 10}


def test_at_the_start_labels_need_the_flag(world: World) -> None:
    with pytest.raises(ConfigConflict, match="^Request to assign label to version 1 of model a, which"):
        world.models.start([world.config("a", stable=1)])
    assert world.registry.models() == []


def logged(*log: Any, **fields: Any) -> ModelConfig:
    return ModelConfig("b", "/m", request_log=RequestLogConfig(*log, **fields))


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ([ModelConfig("a", "/m"), ModelConfig("a", "/n")], "Illegal to list model a multiple times in config list"),
        ([ModelConfig("b", "m")], "Expected model b to have an absolute path or URI; got base_path()=m"),
        (
            [ModelConfig("b", "gs://x/m")],
            (
                "Model b: base_path gs://x/m is in an object store, so --store_cache_dir must name a folder for its "
                "versions"
            ),
        ),
        (
            [ModelConfig("b", "hdfs://x/m")],
            "Model b: base_path hdfs://x/m is a URI; this server reads mounted folders, and s3://, gs:// and az://",
        ),
        (
            [ModelConfig("m" * 1001, "/m")],
            "The name of a model or label has 1001 characters: expected at most 1000",
        ),
        (
            [ModelConfig("m", "/m", labels={"l" * 1001: 1})],
            "The name of a model or label has 1001 characters: expected at most 1000",
        ),
        ([ModelConfig("", "/m")], "A model without a name is listed, its base_path is /m"),
        ([ModelConfig("b", "/m", platform="x")], "Model b requests unsupported platform x"),
        ([ModelConfig("b", "/m", platform="")], NO_PLATFORM),
        (
            [ModelConfig("a", "/m", platform="x")],
            "Illegal to change a model's platform. For model a platform was tensorflow and new platform requested is x",
        ),
        ([logged("", 1)], "No request-logger-creator provided."),
        (
            [logged("/x", 1, "kafka")],
            "Cannot find LogCollector::Factory for type: kafka",
        ),
        (
            [logged("x", 1)],
            "Model b: filename_prefix of logging_config must be absolute; got x",
        ),
        (
            [logged("/x", 1.5)],
            "Model b: sampling_rate of logging_config is 1.5: expected 0 to 1",
        ),
        (
            [logged("/x", 1, foreign=("attributes",))],
            "Model b: attributes of logging_config is not supported",
        ),
    ],
)
def test_a_list_that_is_wrong_in_itself_is_refused_in_tensorflow_servings_words(
    world: World, configs: list[ModelConfig], text: str
) -> None:
    world.start(world.config("a"))
    error = refused(world, *configs)
    assert isinstance(error, InvalidRequest)
    assert error.message == text


def test_a_second_reload_waits_for_the_first_no_longer_than_it_may(world: World) -> None:
    world.start(world.config("a"))
    world.gates["b"] = threading.Event()
    first = threading.Thread(target=world.models.reload, args=([world.config("b")],))
    first.start()
    until(lambda: bool(world.registry.all_statuses("b")))
    with pytest.raises(DeadlineExceeded, match="^Another reload was still going on"):
        world.models.reload([world.config("a")], deadline_s=0.0)
    world.gates["b"].set()
    first.join(30)
    assert world.registry.models() == ["b"]


class Reloads:
    """Reloads in threads. errors: the error that refused each, by the model's name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._threads: list[threading.Thread] = []
        self.errors: dict[str, str] = {}

    def start(self, name: str) -> None:
        self._threads.append(threading.Thread(target=self._reload, args=(name,)))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _reload(self, name: str) -> None:
        try:
            self._world.models.reload([self._world.config(name)])
        except ServiceError as error:
            self.errors[name] = error.message


def test_a_third_reload_is_refused_so_that_they_do_not_take_all_threads(world: World) -> None:
    world.start(world.config("a"))
    world.gates["b"] = threading.Event()
    reloads = Reloads(world)
    reloads.start("b")
    until(lambda: bool(world.registry.all_statuses("b")))
    reloads.start("a")
    until(lambda: world.models._reloads._value == 0)
    before = world.trace()
    with pytest.raises(Overloaded) as caught:
        world.models.reload([world.config("c")])
    assert caught.value.message == "A reload is going on and another one waits for it; nothing was changed."
    assert world.trace() == before
    world.gates["b"].set()
    reloads.join()
    assert (reloads.errors, world.registry.models()) == ({}, ["a"])
    world.models.reload([world.config("c")])


def test_a_server_that_stops_does_not_wait_for_reloads(world: World) -> None:
    world.start(world.config("a"))
    world.gates["b"] = threading.Event()
    reloads = Reloads(world)
    reloads.start("b")
    until(lambda: bool(world.registry.all_statuses("b")))
    reloads.start("c")
    world.models.drain()
    reloads.join()
    assert reloads.errors == dict.fromkeys("bc", "The server is shutting down.")
    # A load can not be interrupted, so stop() returns model "b", which still loads.
    assert world.models.stop(0.01) == ["b"]
    world.gates["b"].set()
    assert world.models.stop(30) == []
