"""Journals are removed when their versions are, and otherwise never; tests set the clock by hand."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from pathlib import Path

import pytest

from service.artifact.delta_journal import journal_path
from service.deltas.rules import GONE_S, JournalPruning
from service.engine.registry import Registry
from service.engine.repository import ModelWatcher
from tests.conftest import Clock
from tests.unit.artifact.test_delta_journal import Writer
from tests.unit.engine.test_repository import World


class Pruned(World):
    """A watched model folder; each of its versions has a journal with one upsert."""

    def __init__(self, base: Path, clock: Clock, journals: Path) -> None:
        super().__init__(base, clock)
        self.journals = journals
        self.worker()

    def worker(self) -> None:
        """Starts anew as another worker process would, which has seen and loaded nothing yet."""
        self.registry = Registry(lambda model, status: None)
        self.registry.add_model("m")
        rules = dataclasses.replace(self.rules, on_look=JournalPruning(self.journals, clock=self.clock).looked)
        self.watcher = ModelWatcher(self.config(), self.registry, rules)

    def journal(self, version: int) -> Path:
        """Returns the path of a version's journal."""
        return journal_path(self.journals, "m", version, b"\1" * 32)

    def give(self, *versions: int) -> None:
        """Adds versions, each with a journal."""
        self.add(*map(str, versions))
        for version in versions:
            Writer(self.journal(version)).append(version)

    def left(self) -> list[int]:
        """Returns the versions that still have a journal."""
        return sorted(int(path.name.split("-")[0]) for path in self.journals.rglob("*.journal"))

    def pass_by(self, seconds: float) -> None:
        """Polls the folder, moves the clock on, and polls again."""
        self.poll()
        self.clock.now_s += seconds
        self.poll()


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Pruned:
    """Returns an empty model folder that is watched."""
    (tmp_path / "base").mkdir()
    return Pruned(tmp_path / "base", clock, tmp_path / "journals")


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Returns the versions whose journals the log says were removed."""
    text = "removed the journal of a version that is gone"
    return [record.__dict__["version"] for record in caplog.records if record.message == text]


def test_a_journal_goes_ten_minutes_behind_its_versions_folder(world: Pruned, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.give(1, 2, 3)
    world.pass_by(2 * GONE_S)
    # Versions 1 and 2 are not loaded, but their folders exist, so they may be loaded again.
    assert (world.serving, world.left()) == (3, [1, 2, 3])
    (world.base / "2").rmdir()
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2, 3]
    world.pass_by(1)
    assert (world.left(), told(caplog)) == ([1, 3], [2])


def test_the_newest_version_may_come_back(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "2").rmdir()
    world.pass_by(2 * GONE_S)
    assert (world.serving, world.left()) == (1, [1, 2])
    # Version 3 is newer than the deleted version 2, so the server gives up the journal of version 2.
    world.add("3")
    world.pass_by(GONE_S)
    assert world.left() == [1]


def test_a_model_folder_that_can_not_be_read_or_is_empty_removes_nothing(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    elsewhere = world.base.with_name("elsewhere")
    world.base.rename(elsewhere)
    world.pass_by(2 * GONE_S)
    assert world.left() == [1, 2]
    # An empty folder in place of the base path, as after a mount that failed.
    world.base.mkdir()
    world.worker()
    world.pass_by(2 * GONE_S)
    assert world.left() == [1, 2]
    world.base.rmdir()
    elsewhere.rename(world.base)
    # While the folder was away nobody knew whether version 1 existed, so the wait for its journal begins again.
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]
    world.pass_by(1)
    assert world.left() == [2]


def test_a_look_that_fails_begins_the_time_anew(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    world.base.rename(world.base.with_name("elsewhere"))
    world.poll()
    world.base.with_name("elsewhere").rename(world.base)
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]


def test_a_folder_that_is_put_back_begins_the_time_anew(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    world.add("1")
    world.poll()
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]


def test_one_that_is_written_to_is_in_use(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    Writer(world.journal(1)).append(5)
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]
    world.pass_by(1)
    assert world.left() == [2]


def test_of_two_workers_one_removes_it_and_one_that_is_held_stays(
    world: Pruned, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.give(1, 2)
    (world.base / "1").rmdir()
    first = JournalPruning(world.journals, clock=world.clock)
    other = JournalPruning(world.journals, clock=world.clock)
    for one in (first, other):
        one.looked("m", {2})
    world.clock.now_s += GONE_S
    with world.journal(1).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first.looked("m", {2})
        assert world.left() == [1, 2]
    other.looked("m", {2})
    world.clock.now_s += GONE_S
    first.looked("m", {2})
    assert (world.left(), told(caplog)) == ([2], [1])


def test_what_is_appended_as_it_is_removed_is_in_a_file_with_a_name(world: Pruned) -> None:
    world.give(1, 2)
    writer, is_removed = Writer(world.journal(1)), []

    def remove_once() -> float:
        # The writer reads the clock while it waits for the lock, and so after it opened the journal.
        if not is_removed:
            is_removed.append(True)
            pruning = JournalPruning(world.journals, clock=world.clock)
            pruning.looked("m", {2})
            world.clock.now_s += GONE_S
            pruning.looked("m", {2})
            assert world.left() == [2]
        return 0.0

    writer.journal._clock = remove_once
    writer.append(7)
    assert world.left() == [1, 2]
    assert [value for _, value in Writer(world.journal(1)).read()] == [7]


def test_what_is_no_journal_of_a_version_stays(world: Pruned, tmp_path: Path) -> None:
    world.give(1, 2)
    folder = world.journal(1).parent
    victim = tmp_path / "victim"
    victim.write_text("")
    os.symlink(victim, folder / f"1-{'0' * 16}.journal")
    for name in ("1.journal", f"1-{'0' * 16}.journal.bak", f"-1-{'0' * 16}.journal"):
        (folder / name).write_text("")
    before = {path.name for path in folder.iterdir()}
    (world.base / "1").rmdir()
    world.pass_by(GONE_S)
    assert {path.name for path in folder.iterdir()} == before - {world.journal(1).name}
    assert victim.exists()
