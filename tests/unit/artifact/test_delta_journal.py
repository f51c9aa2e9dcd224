"""Checks that every reader gets the appended records, whatever a killed writer or a bad disk left in the file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.artifact.delta_file import Delta, DeltaFault, encode
from service.artifact.delta_journal import Journal
from service.errors import DeltaRefused, JournalUnavailable

ALL = 1 << 30


class Writer:
    """One process's view of a journal, through which it appends."""

    def __init__(self, path: Path, max_bytes: int = ALL) -> None:
        self.faults: list[str] = []
        self.journal = Journal(path, max_bytes=max_bytes, max_record_bytes=1 << 20, refused=self._refused)

    def _refused(self, fault: DeltaFault, where: str) -> None:
        self.faults.append(fault.reason)

    def append(self, value: float, at_least: int = 1) -> int:
        """Appends a delta of one row to the journal; returns its sequence number."""

        def make(sequence: int) -> tuple[Delta, bytes]:
            delta = Delta(sequence, "t", np.array([0]), np.array([[value]], np.float32), b"f" * 32)
            return delta, encode(delta)

        return self.journal.append(make, at_least).sequence

    def read(self) -> list[tuple[int, float]]:
        """Returns the (sequence number, value) of each delta in the journal that was not read before."""
        return [(delta.sequence, float(delta.rows[0, 0])) for delta in self.journal.read(ALL)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns the path of the journal."""
    return tmp_path / "model" / "1.journal"


def test_each_process_reads_what_all_wrote(path: Path) -> None:
    one, other = Writer(path), Writer(path)
    assert other.read() == []
    assert [one.append(1), other.append(2), one.append(3, at_least=10)] == [1, 2, 10]
    assert one.read() == other.read() == Writer(path).read() == [(1, 1), (2, 2), (10, 3)]
    assert one.read() == []


def test_what_a_killed_writer_left_is_cut_off(path: Path) -> None:
    one, other = Writer(path), Writer(path)
    one.append(1)
    with path.open("ab") as file:
        file.write(encode(Delta(2, "t", np.array([0]), np.ones((1, 1), np.float32), b"f" * 32))[:-3])
    assert other.read() == [(1, 1)]
    assert other.read() == []
    assert other.faults == ["truncated"]
    assert one.append(5) == 2
    assert other.read() == [(2, 5)]
    assert Writer(path).read() == [(1, 1), (2, 5)]


@pytest.mark.parametrize("offset", [0, 40, 80, 90, 100])
def test_a_damaged_record_costs_itself_alone(path: Path, offset: int) -> None:
    writer = Writer(path)
    for value in (1, 2, 3):
        writer.append(value)
    size = path.stat().st_size // 3
    with path.open("r+b") as file:
        file.seek(size + offset)
        byte = file.read(1)[0]
        file.seek(size + offset)
        file.write(bytes([byte ^ 0x40]))
    late = Writer(path)
    assert late.read() == [(1, 1), (3, 3)]
    assert len(late.faults) == 1
    assert late.append(4) == 4


def test_one_that_was_taken_away_is_begun_again(path: Path) -> None:
    writer = Writer(path)
    writer.append(1)
    path.unlink()
    assert writer.append(2) == 2
    assert Writer(path).read() == [(2, 2)]


def test_nothing_is_written_behind_the_limit(path: Path) -> None:
    writer = Writer(path, max_bytes=250)
    writer.append(1)
    size = path.stat().st_size
    with pytest.raises(DeltaRefused, match="model-export compact"):
        for value in (2, 3):
            writer.append(value)
    assert path.stat().st_size in (size, 2 * size)
    assert writer.journal.failures == {"full": 1, "held": 0, "unwritable": 0}


def test_a_disk_that_fails_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(path)
    writer.append(1)
    size = path.stat().st_size

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(JournalUnavailable, match="No space left on device"):
            writer.append(2)
    assert path.stat().st_size == size
    assert writer.journal.failures == {"full": 0, "held": 0, "unwritable": 1}
    assert writer.append(3) == 2
    assert Writer(path).read() == [(1, 1), (2, 3)]


def test_who_holds_it_is_waited_for_and_then_told_of(path: Path) -> None:
    Writer(path).append(1)
    ticks = iter(range(0, 1000, 3))
    writer = Writer(path)
    writer.journal._clock = lambda: float(next(ticks))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # A reader does not wait for the lock of another process: it returns nothing, and reads again later.
        assert writer.read() == []
        with pytest.raises(JournalUnavailable, match="held by another process"):
            writer.append(2)
    assert writer.journal.failures == {"full": 0, "held": 1, "unwritable": 0}
    assert writer.read() == [(1, 1)]


def link(path: Path) -> None:
    """Makes the path a symbolic link to another file."""
    path.parent.mkdir(parents=True)
    (path.parent / "victim").write_bytes(b"")
    path.symlink_to(path.parent / "victim")


@pytest.mark.parametrize("put", [link, lambda path: path.mkdir(parents=True)])
def test_what_is_no_file_is_not_written_to(path: Path, put: Callable[[Path], None]) -> None:
    put(path)
    with pytest.raises(JournalUnavailable):
        Writer(path).append(1)
