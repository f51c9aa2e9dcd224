"""The watcher of folders finds versions, with a clock that tests set by hand."""

from __future__ import annotations

import dataclasses
import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import ArtifactError, DataLoss, DeadlineExceeded, NotReady, TableUnreachable, VersionNotFound
from service.types import ModelRef, State, VersionStatus
from service.versions.loads import LoadRules
from service.versions.model_config import All, Latest, ModelConfig, Specific, VersionPolicy
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher
from service.versions.servable import Servable
from tests.conftest import Clock
from tests.toy_model import SHARD, write_toy_model
from tests.unit.versions.fakes import FakeBackend, servable

RETRY_INTERVAL_S = 60.0
MAX_RETRIES = 2


def poll(watcher: ModelWatcher) -> float | None:
    """Scans the model's folder, and does what the scan asks for."""
    return watcher.act(watcher.scan())


class World:
    """A model folder, its watcher, and a loader that fails for the versions in `broken`."""

    def __init__(self, base: Path, clock: Clock) -> None:
        self.base, self.clock = base, clock
        self.broken: dict[int, Exception] = {}
        self.loads: list[tuple[int, str]] = []
        self.on_load: Callable[[], object] = lambda: None
        self.backends: dict[int, FakeBackend] = {}
        self.transitions: list[tuple[int, str]] = []
        self.registry = Registry(lambda model, status: self.transitions.append((status.version, status.state.name)))
        self.registry.add_model("m")
        self.rules = LoadRules(self.load, MAX_RETRIES, RETRY_INTERVAL_S, clock=clock)
        self.watcher = ModelWatcher(self.config(), self.registry, self.rules)

    def config(self, policy: VersionPolicy | None = None) -> ModelConfig:
        return ModelConfig("m", str(self.base), policy or Latest())

    def settle(self, settle_s: float) -> None:
        """Watches with a settle time; files are as old as the fake clock says."""
        rules = LoadRules(
            self.load, MAX_RETRIES, RETRY_INTERVAL_S, settle_s=settle_s, clock=self.clock, wall_clock=lambda: 0.0
        )
        self.watcher = ModelWatcher(self.config(), self.registry, rules)

    def load(self, name: str, version: int, path: Path) -> Servable:
        self.loads.append((version, path.name))
        self.on_load()
        if version in self.broken:
            raise self.broken[version]
        self.backends[version] = FakeBackend()
        return servable(version, backend=self.backends[version])

    def add(self, *names: str) -> None:
        for name in names:
            (self.base / name).mkdir(parents=True)

    def poll(self) -> None:
        poll(self.watcher)

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


def test_the_status_keeps_the_newest_32_that_ended(world: World) -> None:
    for version in range(1, 41):
        world.add(str(version))
        world.poll()
    assert [s.version for s in world.registry.statuses("m")] == list(range(40, 7, -1))


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


@pytest.mark.parametrize(("is_draining", "level"), [(True, logging.INFO), (False, logging.ERROR)])
def test_a_load_that_a_stopping_server_ends_is_no_error_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture, is_draining: bool, level: int
) -> None:
    world.broken[1] = NotReady("The version was given up.")
    world.add("1")
    if is_draining:
        world.registry.drain()
    with caplog.at_level(logging.INFO):
        world.poll()
    assert [r.levelno for r in caplog.records if r.getMessage() == "load failed"] == [level]


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


def _caused(error: Exception, by: BaseException) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    "error",
    [
        TableUnreachable("the cluster does not answer"),
        NotReady("the store denies access"),
        DeadlineExceeded("it did not load within 5 s"),
        MemoryError("no memory"),
        RuntimeError("can't start new thread"),
        OSError(errno.EIO, "Input/output error"),
        _caused(ArtifactError("can not be locked in memory"), OSError(errno.ENOMEM, "Cannot allocate memory")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_reason_outside_of_the_folder_is_tried_for_ever_with_growing_waits(world: World, error: Exception) -> None:
    world.broken[1] = error
    world.add("1")
    world.poll()
    waits = []
    for number in range(1, 40):
        world.broken[1] = error if number < 20 else NotReady("another reason")
        begun_s, loads = world.clock.now_s, len(world.loads)
        while len(world.loads) == loads:
            due_s = poll(world.watcher)
            assert due_s is not None, "no further try is planned"
            world.clock.now_s += due_s if len(world.loads) == loads else 0
        waits.append(world.clock.now_s - begun_s)
    assert world.registry.statuses("m")[0].message == "another reason", "the reason of the last try is shown"
    assert 0.8 <= waits[0] <= 1.3 and 1.6 <= waits[1] <= 2.5
    assert 0.8 * RETRY_INTERVAL_S <= min(waits[10:]) and max(waits) <= 1.2 * RETRY_INTERVAL_S + 0.1
    assert len(set(waits[10:])) > 10, "the waits are spread at random"
    del world.broken[1]
    world.clock.now_s += 1.2 * RETRY_INTERVAL_S
    world.poll()
    assert world.serving == 1


def test_a_replaced_version_that_failed_for_a_reason_outside_is_loaded_again_later(world: World) -> None:
    world.watcher = ModelWatcher(
        world.config(), world.registry, dataclasses.replace(world.rules, reloads_replaced=True)
    )
    world.add("1")
    (world.base / "1" / "saved_model.pb").write_bytes(b"old")
    world.poll()
    (world.base / "1" / "saved_model.pb").write_bytes(b"newer")
    world.broken[1] = TableUnreachable("the cluster does not answer")
    for _ in range(10):
        world.poll()
        world.clock.now_s += 2 * RETRY_INTERVAL_S
    assert len(world.loads) == 11
    world.broken[1] = ArtifactError("no graph")
    for _ in range(5):
        world.poll()
        world.clock.now_s += 2 * RETRY_INTERVAL_S
    assert len(world.loads) == 12, "a fault of the folder is not tried again"


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


def test_a_folder_that_vanishes_keeps_its_version_serving(world: World) -> None:
    world.add("1")
    world.poll()
    shutil.rmtree(world.base)
    world.poll()
    assert world.serving == 1
    assert world.registry.is_ready


def test_a_folder_that_is_there_and_empty_unloads_the_last_version(world: World) -> None:
    world.add("1")
    world.poll()
    shutil.rmtree(world.base / "1")
    world.poll()
    assert world.serving == 1, "one scan alone unloads nothing"
    world.poll()
    assert world.serving is None
    assert world.backends[1].closed == 1
    assert world.registry.statuses("m") == [VersionStatus(1, State.END)]
    assert world.registry.problem("m") == f"no version folder (an integer name such as 1) in {world.base}"
    world.add("1")
    world.poll()
    assert world.serving == 1


def test_a_folder_that_is_empty_for_a_moment_keeps_its_version_serving(world: World) -> None:
    world.settle(2.0)
    world.add("1")
    world.clock.now_s += 2
    poll(world.watcher)
    world.clock.now_s += 2
    poll(world.watcher)
    assert world.serving == 1
    shutil.rmtree(world.base / "1")
    assert poll(world.watcher) == 2.0, "the time until the scan that decides"
    world.clock.now_s += 1.9
    assert poll(world.watcher) == pytest.approx(0.1)
    # What removes the model's folder removes the folder itself now.
    world.base.rmdir()
    poll(world.watcher)
    world.clock.now_s += 10
    poll(world.watcher)
    assert world.serving == 1
    # The scan that found no version before the folder was gone does not count any more.
    world.base.mkdir()
    poll(world.watcher)
    assert world.serving == 1


def test_a_missing_folder_is_the_reason_for_not_being_ready(world: World) -> None:
    assert world.registry.problem("m") == "its folder has not been read yet"
    world.poll()
    assert world.registry.problem("m") == f"no version folder (an integer name such as 1) in {world.base}"
    world.base.rmdir()
    world.poll()
    assert world.registry.problem("m") == f"cannot read the folder {world.base}: No such file or directory"
    with pytest.raises(VersionNotFound, match="^Could not find any versions of model m: cannot read the folder "):
        world.registry.statuses("m")
    world.add("1")
    world.poll()
    assert world.registry.problem("m") == ""


def test_a_version_in_place_of_its_folder_is_explained_until_there_is_one(world: World) -> None:
    (world.base / "saved_model.pb").touch()
    world.poll()
    assert "which holds saved_model.pb and so is a version itself" in world.registry.problem("m")
    world.add("1")
    world.poll()
    assert world.serving == 1


def test_the_same_problem_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        world.poll()
    assert [r.levelno for r in caplog.records if r.getMessage() == "model has no versions"] == [logging.WARNING]


@pytest.mark.parametrize(
    ("policy", "loaded"),
    [
        (Latest(), [10]),
        (Latest(2), [10, 9]),
        (Latest(0), [10]),
        (All(), [10, 9, 1]),
        (Specific(frozenset({1, 9, 77})), [9, 1]),
    ],
)
def test_the_policy_chooses_and_the_newest_loads_first(world: World, policy: VersionPolicy, loaded: list[int]) -> None:
    world.add("1", "9", "10")
    world.watcher.configure(world.config(policy))
    world.poll()
    assert [version for version, _ in world.loads] == loaded
    assert world.registry.statuses("m") == [VersionStatus(version, State.AVAILABLE) for version in loaded]
    assert world.serving == loaded[0]


def test_versions_that_wait_for_their_turn_are_in_state_start(world: World) -> None:
    world.add("1", "2")
    seen: list[list[tuple[int, str]]] = []
    load = world.load

    def looking(name: str, version: int, path: Path) -> Servable:
        seen.append([(s.version, s.state.name) for s in world.registry.statuses("m")])
        return load(name, version, path)

    watcher = ModelWatcher(world.config(All()), world.registry, LoadRules(looking, 0, 1.0))
    poll(watcher)
    assert seen == [[(2, "LOADING"), (1, "START")], [(2, "AVAILABLE"), (1, "LOADING")]]


def test_another_policy_loads_before_it_unloads(world: World) -> None:
    world.add("1", "2")
    world.poll()
    world.transitions.clear()
    world.watcher.configure(world.config(Specific(frozenset({1}))))
    world.poll()
    assert world.transitions == [(1, "START"), (1, "LOADING"), (1, "AVAILABLE"), (2, "UNLOADING"), (2, "END")]


def test_a_policy_whose_versions_all_fail_replaces_nothing(world: World) -> None:
    world.add("1", "2")
    world.poll()
    world.broken[1] = ArtifactError("broken")
    world.watcher.configure(world.config(Specific(frozenset({1}))))
    world.poll()
    assert world.serving == 2


def test_a_policy_without_a_version_on_disk_unloads_all_and_says_so(world: World) -> None:
    world.add("1")
    world.poll()
    world.watcher.configure(world.config(Specific(frozenset({7}))))
    world.poll()
    assert world.serving is None
    assert (
        world.registry.problem("m") == f"none of the versions in model_version_policy is in {world.base}, which has 1"
    )


def test_one_version_that_fails_does_not_keep_the_others_from_loading(world: World) -> None:
    world.add("1", "2")
    world.broken[2] = ArtifactError("broken")
    world.watcher.configure(world.config(All()))
    world.poll()
    assert world.serving == 1
    assert [(s.version, s.state.name) for s in world.registry.statuses("m")] == [(2, "END"), (1, "AVAILABLE")]


def test_a_folder_is_loaded_when_nothing_in_it_has_changed_for_the_settle_time(world: World) -> None:
    world.settle(5.0)
    world.add("1")
    assert poll(world.watcher) == 5.0, "it must look again by itself, also with an interval of 0"
    for size in (1, 2, 3):
        world.clock.now_s += 4.0
        (world.base / "1" / "saved_model.pb").write_bytes(b"x" * size)
        world.poll()
    assert world.loads == []
    assert world.registry.statuses("m") == [VersionStatus(1, State.START)]
    world.clock.now_s += 5.0
    world.poll()
    assert world.loads == [(1, "1")]


def test_a_folder_that_has_long_been_there_is_loaded_at_once(world: World) -> None:
    world.add("1")
    rules = LoadRules(world.load, 0, 1.0, settle_s=5.0, clock=world.clock, wall_clock=lambda: 2.0**40)
    poll(ModelWatcher(world.config(), world.registry, rules))
    assert world.loads == [(1, "1")]


def test_an_artifact_whose_manifest_agrees_with_its_files_does_not_wait(world: World) -> None:
    world.settle(5.0)
    write_toy_model(world.base / "1")
    world.poll()
    assert world.loads == [(1, "1")]
    write_toy_model(world.base / "2")
    file = world.base / "2" / SHARD
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    world.poll()
    assert world.loads == [(1, "1")], "one file is short"
    file.write_bytes(data)
    world.poll()
    assert world.loads == [(1, "1"), (2, "2")]


def test_a_half_copied_version_that_vanishes_while_it_is_waited_for_ends(world: World) -> None:
    world.settle(5.0)
    world.add("1")
    world.poll()
    shutil.rmtree(world.base / "1")
    world.poll()
    assert world.registry.statuses("m") == [VersionStatus(1, State.END)]
    assert world.loads == []


def test_a_failed_version_that_was_mended_is_tried_at_once_and_from_the_first_attempt(world: World) -> None:
    world.broken[1] = ArtifactError("half a copy")
    world.add("1")
    for _ in range(MAX_RETRIES + 2):
        world.poll()
        world.clock.now_s += RETRY_INTERVAL_S
    assert len(world.loads) == MAX_RETRIES + 1, "given up"
    (world.base / "1" / "saved_model.pb").write_bytes(b"x")
    world.poll()
    world.poll()
    assert len(world.loads) == MAX_RETRIES + 2
    del world.broken[1]
    (world.base / "1" / "saved_model.pb").write_bytes(b"xx")
    world.poll()
    assert world.serving == 1


def test_a_version_that_failed_is_tried_at_once_from_another_base_path(world: World, tmp_path: Path) -> None:
    world.broken[1] = ArtifactError("broken")
    world.add("1")
    world.poll()
    del world.broken[1]
    (tmp_path / "elsewhere" / "0001").mkdir(parents=True)
    world.watcher.configure(ModelConfig("m", str(tmp_path / "elsewhere")))
    world.poll()
    assert world.loads == [(1, "1"), (1, "0001")]
    assert world.serving == 1


def test_a_version_whose_folder_does_not_answer_holds_up_no_other(world: World) -> None:
    answer, looks = threading.Event(), []

    def wall_clock() -> float:
        # The first call reads the clock for version 2, the newest, and waits.
        looks.append("look")
        if len(looks) == 1:
            answer.wait()
        return 0.0

    world.add("1", "2")
    rules = dataclasses.replace(world.rules, look_timeout_s=0.05, wall_clock=wall_clock)
    watcher = ModelWatcher(world.config(All()), world.registry, rules)
    poll(watcher)
    poll(watcher)
    assert (world.loads, len(looks)) == ([(1, "1")], 2)
    answer.set()
    end_s = time.monotonic() + 60
    while world.serving != 2:
        poll(watcher)
        assert time.monotonic() < end_s


class Slots:
    """A stand-in for load slots: it counts how often a slot was taken, and calls `before` when one is about to be."""

    def __init__(self) -> None:
        self.entered = 0
        self.is_held = False
        self.before: Callable[[], object] = lambda: None

    def __enter__(self) -> None:
        self.before()
        self.entered += 1
        self.is_held = True

    def __exit__(self, *error: object) -> None:
        self.is_held = False


@pytest.fixture
def slots(world: World) -> Slots:
    """Lets the world's models load only in free slots; returns these slots."""
    slots = Slots()
    rules = dataclasses.replace(world.rules, slots=slots)
    world.watcher = ModelWatcher(world.config(), world.registry, rules)
    return slots


def test_a_slot_is_held_during_a_load_and_not_longer(world: World, slots: Slots) -> None:
    seen: list[bool] = []
    world.on_load = lambda: seen.append(slots.is_held)
    world.add("1")
    for _ in range(3):
        world.poll()
    world.broken[2] = ArtifactError("broken")
    world.add("2")
    world.poll()
    assert (seen, slots.entered, slots.is_held) == ([True, True], 2, False)


@pytest.mark.parametrize("what", ["another config", "the end"])
def test_what_is_not_wanted_any_more_when_a_slot_is_free_is_not_loaded(world: World, slots: Slots, what: str) -> None:
    world.add("1")
    slots.before = world.watcher.stop if what == "the end" else lambda: world.watcher.configure(None)
    world.poll()
    assert (world.loads, slots.entered) == ([], 1)


def fill(folder: Path, text: str) -> None:
    """Writes a file that tells one version from another, by rename as copying tools do."""
    folder.mkdir(exist_ok=True)
    (folder / "draft").write_text(text)
    (folder / "draft").rename(folder / "saved_model.pb")


def test_files_that_were_replaced_under_a_served_number_are_reported_and_not_served(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fill(world.base / "1", "one")
    world.poll()
    (world.base / "1").rename(world.base / "old")
    fill(world.base / "1", "two")
    for _ in range(2):
        world.poll()
    told = [record.reason for record in caplog.records if record.message == "version needs attention"]  # type: ignore[attr-defined]
    assert told == [world.registry.notes("m")[1]]
    assert "other files than the served ones lie in" in told[0]
    assert (world.serving, world.loads) == (1, [(1, "1")])
    shutil.rmtree(world.base / "1")
    (world.base / "old").rename(world.base / "1")
    world.poll()
    assert world.registry.notes("m") == {}


def test_a_version_whose_link_leads_elsewhere_is_reported(world: World, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name, name)
    (world.base / "1").symlink_to(tmp_path / "a")
    world.poll()
    assert world.registry.notes("m") == {}
    (world.base / "1").unlink()
    (world.base / "1").symlink_to(tmp_path / "b")
    world.poll()
    assert "other files than the served ones" in world.registry.notes("m")[1]


def test_other_links_modes_and_deltas_are_no_replacement(world: World, tmp_path: Path) -> None:
    fill(world.base / "1", "one")
    world.poll()
    (world.base / "1" / "saved_model.pb").chmod(0o400)
    (tmp_path / "link").hardlink_to(world.base / "1" / "saved_model.pb")
    (world.base / "1" / "assets.extra" / "deltas").mkdir(parents=True)
    world.poll()
    (world.base / "1" / "saved_model.pb").unlink()
    world.poll()
    assert world.registry.notes("m") == {}


def reloading(world: World) -> World:
    world.watcher = ModelWatcher(
        world.config(), world.registry, dataclasses.replace(world.rules, reloads_replaced=True)
    )
    return world


def test_a_replaced_version_is_loaded_again_where_asked_and_serves_throughout(world: World) -> None:
    reloading(world)
    fill(world.base / "1", "one")
    world.poll()
    old = world.backends[1]
    world.on_load = lambda: world.transitions.append((world.serving or 0, "serves"))
    world.transitions.clear()
    fill(world.base / "1", "two")
    for _ in range(2):
        world.poll()
    assert world.loads == [(1, "1")] * 2
    assert world.transitions == [(1, "serves")]
    assert (old.closed, world.backends[1].closed, world.serving) == (1, 0, 1)
    assert world.registry.notes("m") == {}


def test_a_replaced_version_that_does_not_load_again_leaves_the_served_one(world: World) -> None:
    reloading(world)
    fill(world.base / "1", "one")
    world.poll()
    world.broken[1] = ArtifactError("no graph")
    fill(world.base / "1", "two")
    for _ in range(3):
        world.poll()
    assert (world.serving, len(world.loads), world.backends[1].closed) == (1, 2, 0)
    assert world.registry.notes("m")[1].endswith(": no graph")
    del world.broken[1]
    fill(world.base / "1", "three")
    world.poll()
    assert (len(world.loads), world.registry.notes("m")) == (3, {})


def test_at_a_cold_start_the_newest_version_that_loads_serves_and_the_broken_one_is_retried(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add("1", "2", "3", "4")
    world.broken = {4: ArtifactError("no graph"), 3: ArtifactError("no variables")}
    world.poll()
    assert (world.serving, world.loads) == (2, [(4, "4"), (3, "3"), (2, "2")])
    told = next(record for record in caplog.records if record.message == "an older version is served")
    assert (told.version, told.instead_of) == (2, 4)  # type: ignore[attr-defined]
    assert world.registry.statuses("m", 4)[0].message == "no graph"
    del world.broken[4]
    world.clock.now_s += RETRY_INTERVAL_S
    world.poll()
    assert (world.serving, world.backends[2].closed) == (4, 1)


def test_the_status_always_shows_what_comes_next_at_a_cold_start(world: World) -> None:
    # A reload of the list of models fails if a model has a failed version and none that loads or waits.
    world.add("1", "2")
    world.broken[2] = ArtifactError("no graph")
    world.poll()
    assert world.transitions.index((1, "START")) < world.transitions.index((2, "END"))


def test_a_half_copied_newest_version_does_not_keep_an_older_one_from_serving(world: World) -> None:
    write_toy_model(world.base / "1")
    write_toy_model(world.base / "2")
    shard = world.base / "2" / SHARD
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    world.settle(5.0)
    world.poll()
    assert (world.serving, world.registry.statuses("m", 2)[0].state) == (1, State.START)
    shard.write_bytes(whole)
    world.poll()
    assert (world.serving, world.backends[1].closed) == (2, 1)


@pytest.mark.parametrize("policy", [All(), Specific(frozenset({2}))])
def test_a_policy_that_names_its_versions_gets_no_other(world: World, policy: VersionPolicy) -> None:
    world.add("1", "2")
    world.broken = {1: ArtifactError("x"), 2: ArtifactError("x")}
    world.watcher.configure(world.config(policy))
    world.poll()
    assert [version for version, _ in world.loads] == ([2, 1] if isinstance(policy, All) else [2])


def test_a_failed_version_that_is_copied_again_is_in_state_start(world: World) -> None:
    world.settle(2.0)
    world.broken[1] = ArtifactError("no saved_model.pb")
    world.add("1")
    for _ in range(2):
        poll(world.watcher)
        world.clock.now_s += 2
    poll(world.watcher)
    assert world.registry.statuses("m", 1)[0].state is State.END
    (world.base / "1" / "saved_model.pb").write_bytes(b"x")
    poll(world.watcher)
    assert world.registry.statuses("m", 1) == [VersionStatus(1, State.START)]
    del world.broken[1]
    world.clock.now_s += 2
    poll(world.watcher)
    assert world.serving == 1


def test_a_failed_version_that_is_seen_while_its_folder_is_removed_is_forgotten(world: World) -> None:
    world.settle(2.0)
    world.broken[2] = ArtifactError("broken")
    world.add("1", "2")
    (world.base / "2" / "saved_model.pb").write_bytes(b"x")
    for _ in range(3):
        poll(world.watcher)
        world.clock.now_s += 2
    assert world.registry.statuses("m", 2)[0].state is State.END
    (world.base / "2" / "saved_model.pb").unlink()
    poll(world.watcher)
    assert world.registry.statuses("m", 2) == [VersionStatus(2, State.START)]
    (world.base / "2").rmdir()
    poll(world.watcher)
    assert [status.version for status in world.registry.all_statuses("m")] == [1]


def test_two_folders_of_one_number_are_reported(world: World) -> None:
    world.add("1", "01")
    world.poll()
    assert world.loads == [(1, "1")]
    assert world.registry.notes("m") == {
        1: "folder 1 is read, and 01 is not: their names are the same number; remove one"
    }
    (world.base / "01").rmdir()
    world.poll()
    assert world.registry.notes("m") == {}


@pytest.mark.parametrize("policy", [Latest(), Specific(frozenset({1}))])
def test_a_damaged_version_replaces_nothing(world: World, policy: VersionPolicy) -> None:
    world.broken[1] = DataLoss("its bytes changed")
    world.watcher.configure(world.config(Specific(frozenset({2}))))
    world.add("1", "2")
    world.poll()
    world.watcher.configure(world.config(policy))
    world.poll()
    shutil.rmtree(world.base / "2")
    world.clock.now_s += 3600
    world.poll()
    world.poll()
    assert (1, "1") in world.loads
    assert world.serving == 2
    shutil.rmtree(world.base / "1")
    world.add("3")
    world.poll()
    world.watcher.configure(world.config())
    world.poll()
    assert world.serving == 3
