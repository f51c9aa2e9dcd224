"""A version whose files are damaged gives no more answers, and the watcher removes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import DataLoss
from service.tables.guarded_files import GuardedFiles
from service.types import ModelRef, State, VersionStatus
from service.versions.model_config import All
from service.versions.neighbors import Nearest, RowSearch
from service.versions.registry import Registry
from service.versions.servable import Servable
from tests.conftest import Clock, RecordingObserver
from tests.unit.control.test_engine import QUERY, FakeTable
from tests.unit.versions.fakes import servable
from tests.unit.versions.test_repository import World

WHY = "file variables.data was written to"


class Damageable(World):
    """A world whose versions have files that a test can mark as damaged."""

    files: dict[int, GuardedFiles]

    def load(self, name: str, version: int, path: Path) -> Servable:
        """Opens a version."""
        super().load(name, version, path)
        self.files = getattr(self, "files", {}) | {version: GuardedFiles()}
        return servable(version, backend=self.backends[version], files=self.files[version])


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Damageable:
    """An empty model folder under watch."""
    (tmp_path / "m").mkdir()
    return Damageable(tmp_path / "m", clock)


def status(world: Damageable, version: int) -> VersionStatus:
    """Returns the status of a version."""
    return world.registry.statuses("m", version)[0]


def test_a_damaged_version_is_taken_out_and_the_one_before_it_serves(world: Damageable) -> None:
    world.add("1", "2")
    world.poll()
    assert world.serving == 2
    world.files[2].damaged(WHY)
    world.poll()
    assert world.serving == 1
    assert status(world, 2) == VersionStatus(2, State.END, "DATA_LOSS", WHY)
    assert world.backends[2].closed == 1
    # As long as nobody changes its files, version 2 is not loaded again, and version 1 serves.
    world.clock.now_s += 1000
    world.poll()
    assert (world.serving, world.loads) == (1, [(2, "2"), (1, "1")])
    assert status(world, 2).code == "DATA_LOSS"


def test_without_another_version_requests_learn_why_there_is_none(world: Damageable) -> None:
    world.add("2")
    world.poll()
    world.files[2].damaged(WHY)
    world.poll()
    assert world.serving is None
    assert world.registry.problem("m") == f"version 2 is END: {WHY}"
    world.add("3")
    world.poll()
    assert world.serving == 3


def test_a_damaged_version_whose_folder_changes_is_tried_again(world: Damageable) -> None:
    world.add("1", "2")
    world.poll()
    world.files[2].damaged(WHY)
    world.poll()
    (world.base / "2" / "mended").touch()
    world.poll()
    assert (world.serving, status(world, 2).code) == (2, "OK")


def test_a_version_that_was_overwritten_before_the_damage_was_seen_is_loaded_again(world: Damageable) -> None:
    world.add("1")
    world.poll()
    # Between two scans, the whole version is overwritten in place: its folder does not change any more.
    for name in ("saved_model.pb", "variables.data"):
        (world.base / "1" / name).write_bytes(b"whole and new")
    world.files[1].damaged(WHY)
    world.poll()
    assert (world.serving, status(world, 1).code) == (1, "OK")
    assert world.loads == [(1, "1")] * 2


def test_a_version_that_is_found_damaged_as_it_loads_is_not_tried_again_until_it_is_mended(world: Damageable) -> None:
    world.add("1", "2")
    world.broken[2] = DataLoss(WHY)
    world.poll()
    world.poll()
    assert (world.serving, status(world, 2)) == (1, VersionStatus(2, State.END, "DATA_LOSS", WHY))
    world.clock.now_s += 1000
    world.poll()
    assert world.loads == [(2, "2"), (1, "1")]
    (world.base / "2" / "mended").touch()
    del world.broken[2]
    world.poll()
    assert world.serving == 2


def test_a_damaged_version_that_does_not_load_again_leaves_the_one_before_it(world: Damageable) -> None:
    world.add("1", "2")
    world.poll()
    world.files[2].damaged(WHY)
    world.poll()
    (world.base / "2" / "half").touch()
    world.broken[2] = DataLoss("half of it is missing")
    world.poll()
    assert (world.serving, status(world, 2).message) == (1, "half of it is missing")


def test_a_damaged_version_is_forgotten_with_its_folder(world: Damageable) -> None:
    world.add("1", "2")
    world.poll()
    world.files[2].damaged(WHY)
    world.poll()
    shutil.rmtree(world.base / "2")
    world.poll()
    assert [found.version for found in world.registry.statuses("m")] == [1]


def test_a_damaged_version_is_taken_out_although_the_folder_is_gone(world: Damageable) -> None:
    world.add("1")
    world.poll()
    shutil.rmtree(world.base)
    world.files[1].damaged(WHY)
    world.poll()
    assert (world.serving, status(world, 1).code) == (None, "DATA_LOSS")


def test_the_others_of_all_versions_are_left_alone(world: Damageable) -> None:
    world.add("1", "2", "3")
    world.watcher.configure(world.config(All()))
    world.poll()
    world.files[2].damaged(WHY)
    world.poll()
    assert world.registry.is_available("m", 3) and world.registry.is_available("m", 1)
    assert not world.registry.is_available("m", 2)
    assert len(world.loads) == 3


def test_no_answer_that_was_read_from_damaged_files_gets_out(observer: RecordingObserver, clock: Clock) -> None:
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    told: list[str] = []
    engine = Engine(registry, observer, clock, on_damage=told.append)
    files = GuardedFiles()

    class Damaging(FakeTable):
        def nearest(self, search: RowSearch) -> Nearest:
            files.damaged(WHY)
            return super().nearest(search)

    registry.start("m", 7)
    registry.publish(servable(7, tables={"t": Damaging()}, files=files))
    ref = ModelRef("m")
    with pytest.raises(DataLoss, match='version 7 of model "m"'):
        engine.neighbors(ref, "t", QUERY, Call("http"))
    assert told == ["m"]
    with pytest.raises(DataLoss):
        engine.table_rows(ref, "t", np.array([1]))
    assert told == ["m", "m"]
    assert [type(request["error"]) for request in observer.finished_requests] == [DataLoss]
