"""The folder watcher, on a clock that tests move by hand."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

import pytest

from service.core.errors import ArtifactError, NotReady
from service.core.registry import Registry
from service.core.repository import ModelWatcher, find_versions
from service.core.servable import Servable
from service.core.types import ModelRef, State, VersionStatus
from tests.conftest import Clock
from tests.unit.core.fakes import FakeBackend, servable

RETRY_INTERVAL_S = 60.0
MAX_RETRIES = 2


class World:
    """A folder, a watcher over it and a loader that fails where it is told to."""

    def __init__(self, base: Path, clock: Clock) -> None:
        self.base, self.clock = base, clock
        self.broken: dict[int, Exception] = {}
        self.loads: list[tuple[int, str]] = []
        self.backends: dict[int, FakeBackend] = {}
        self.transitions: list[tuple[int, str]] = []
        self.registry = Registry(lambda model, status: self.transitions.append((status.version, status.state.name)))
        self.watcher = ModelWatcher(
            name="m",
            base_path=base,
            registry=self.registry,
            load=self.load,
            max_retries=MAX_RETRIES,
            retry_interval_s=RETRY_INTERVAL_S,
            clock=clock,
        )

    def load(self, name: str, version: int, path: Path) -> Servable:
        self.loads.append((version, path.name))
        if version in self.broken:
            raise self.broken[version]
        self.backends[version] = FakeBackend()
        return servable(version, backend=self.backends[version])

    def add(self, *names: str) -> None:
        for name in names:
            (self.base / name).mkdir(parents=True)

    def poll(self) -> None:
        self.watcher.poll_once()

    @property
    def serving(self) -> int | None:
        try:
            with self.registry.lease(ModelRef("m")) as held:
                return held.version
        except NotReady:
            return None


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> World:
    """An empty model folder under watch."""
    (tmp_path / "m").mkdir()
    return World(tmp_path / "m", clock)


def test_only_integer_folders_are_versions(tmp_path: Path) -> None:
    for name in ("1", "007", "12.tmp", "-3", "v4", "5 ", "٣", "latest", str(2**63 - 1), str(2**63)):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file, not a folder")
    assert sorted(find_versions(tmp_path)) == [1, 7, 2**63 - 1]


def test_only_the_newest_is_loaded(world: World) -> None:
    world.add("1", "9", "10")
    world.poll()
    assert world.loads == [(10, "10")]
    assert world.serving == 10


def test_leading_zeros_keep_their_folder(world: World) -> None:
    world.add("00000123")
    world.poll()
    assert world.loads == [(123, "00000123")]


def test_a_new_version_is_loaded_before_the_old_is_unloaded(world: World) -> None:
    world.add("1")
    world.poll()
    world.add("2")
    world.transitions.clear()
    world.poll()
    assert world.transitions == [
        (2, "START"),
        (2, "LOADING"),
        (2, "AVAILABLE"),
        (1, "UNLOADING"),
        (1, "END"),
    ]
    assert (world.backends[1].closed, world.backends[2].closed) == (1, 0)


def test_a_version_that_was_replaced_leaves_the_status(world: World) -> None:
    world.add("1")
    world.poll()
    world.add("2")
    world.poll()
    assert world.registry.statuses("m") == [VersionStatus(2, State.AVAILABLE)]


def test_a_loaded_version_is_not_loaded_again(world: World) -> None:
    world.add("1")
    for _ in range(3):
        world.poll()
    assert world.loads == [(1, "1")]


def test_a_version_that_fails_leaves_the_old_one_serving_and_shows_why(world: World) -> None:
    world.add("1")
    world.poll()
    world.broken[2] = ArtifactError("no saved_model.pb")
    world.add("2")
    world.poll()
    assert world.serving == 1
    assert world.backends[1].closed == 0
    assert world.registry.statuses("m", 2) == [VersionStatus(2, State.END, "FAILED_PRECONDITION", "no saved_model.pb")]


def test_any_exception_of_a_loader_is_a_failed_load_with_its_traceback_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.broken[1] = RuntimeError("surprise")
    world.add("1")
    world.poll()
    assert world.registry.statuses("m")[0].message == "RuntimeError: surprise"
    (record,) = [r for r in caplog.records if r.getMessage() == "load failed"]
    assert record.exc_info is not None
    assert vars(record)["reason"] == "RuntimeError: surprise"


def test_a_failure_of_the_artifact_is_logged_in_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.broken[1] = ArtifactError("no saved_model.pb")
    world.add("1")
    world.poll()
    (record,) = [r for r in caplog.records if r.getMessage() == "load failed"]
    assert record.exc_info is None
    assert (vars(record)["attempt"], vars(record)["retry_in_s"]) == (1, RETRY_INTERVAL_S)


def test_a_failed_version_is_tried_again_only_after_the_interval_and_no_more_than_asked(world: World) -> None:
    world.broken[1] = ArtifactError("not yet")
    world.add("1")
    attempts = []
    for _ in range(6):
        world.poll()
        world.clock.now_s += RETRY_INTERVAL_S - 1
        world.poll()
        attempts.append(len(world.loads))
        world.clock.now_s += 1
    assert attempts == [1, 2, 3, 3, 3, 3]


def test_a_retry_that_works_serves(world: World) -> None:
    world.broken[1] = ArtifactError("not yet")
    world.add("1")
    world.poll()
    assert world.serving is None
    del world.broken[1]
    world.clock.now_s += RETRY_INTERVAL_S
    world.poll()
    assert world.serving == 1
    assert world.registry.problem("m") == ""


def test_a_newer_version_is_tried_while_an_older_one_waits_for_its_retry(world: World) -> None:
    world.broken[1] = ArtifactError("broken")
    world.add("1")
    world.poll()
    world.add("2")
    world.poll()
    assert world.serving == 2
    assert [s.version for s in world.registry.statuses("m")] == [2, 1], "the failure stays visible"


def test_a_failed_version_whose_folder_goes_is_forgotten_and_may_come_back(world: World) -> None:
    world.add("1")
    world.poll()
    world.broken[2] = ArtifactError("half copied")
    world.add("2")
    world.poll()
    shutil.rmtree(world.base / "2")
    world.poll()
    assert [s.version for s in world.registry.statuses("m")] == [1]
    del world.broken[2]
    world.add("2")
    world.poll()
    assert world.serving == 2, "at once, without waiting for the interval of the attempt before"


def test_removing_the_newest_version_goes_back_to_the_one_before(world: World) -> None:
    world.add("1", "2")
    world.poll()
    shutil.rmtree(world.base / "2")
    world.poll()
    assert world.serving == 1
    assert world.backends[2].closed == 1


@pytest.mark.parametrize("what", ["folder", "versions"])
def test_a_folder_that_vanishes_keeps_its_version_serving(world: World, what: str) -> None:
    world.add("1")
    world.poll()
    shutil.rmtree(world.base if what == "folder" else world.base / "1")
    world.poll()
    assert world.serving == 1
    assert world.registry.is_ready


def test_a_missing_folder_is_the_reason_for_not_being_ready(world: World) -> None:
    assert world.registry.problem("m") == "its folder has not been looked at yet"
    world.poll()
    assert world.registry.problem("m") == f"no version folder (an integer name such as 1) in {world.base}"
    world.base.rmdir()
    world.poll()
    assert world.registry.problem("m") == f"cannot read its folder {world.base}: No such file or directory"
    world.add("1")
    world.poll()
    assert world.registry.problem("m") == ""


def test_the_same_problem_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        world.poll()
    assert [r.levelno for r in caplog.records if r.getMessage() == "model has no versions"] == [logging.WARNING]


def test_an_interval_of_zero_polls_once(world: World) -> None:
    world.add("1")
    world.watcher.run(threading.Event(), 0)
    assert world.loads == [(1, "1")]


def test_polling_goes_on_after_a_surprise_and_ends_when_told(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            polls.append(timeout)
            return len(polls) == 3

    def fail() -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(world.watcher, "poll_once", fail)
    world.watcher.run(Stop(), 7.0)
    assert polls == [7.0, 7.0, 7.0]
    assert [r.getMessage() for r in caplog.records] == ["polling failed"] * 3
