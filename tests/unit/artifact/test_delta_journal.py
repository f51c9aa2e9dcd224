"""Deltas are written, read and kept in a journal, durably."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.artifact.delta_file import Delta, DeltaFault, decode, encode, fingerprint_of
from service.artifact.delta_journal import Journal
from service.artifact.files import outdated, publish_folder, restore_folders, write_whole
from service.errors import DeltaRefused, JournalUnavailable
from tests.deltas import crc32c, delta_bytes


def test_written_as_the_format_says(toy_model: Path) -> None:
    version = toy_model / "1"
    rows = np.array([[1, 2], [3, 4.5]], np.float32)
    made = encode(Delta(9, "user", np.array([4, 0]), rows, fingerprint_of(version), 0, is_forced=True))
    assert made == delta_bytes(version, 9, "user", [4, 0], rows.tolist(), flags=1)
    read = decode(made)
    assert (read.sequence, read.table, read.is_forced, read.ids.tolist()) == (9, "user", True, [4, 0])
    assert read.rows.tolist() == rows.tolist()


def test_no_changed_byte_goes_unnoticed(toy_model: Path) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])
    for place in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[place] ^= bit
            with pytest.raises(DeltaFault):
                decode(bytes(changed))


def test_no_part_is_taken_for_the_whole(toy_model: Path) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])
    for size in range(len(data)):
        with pytest.raises(DeltaFault):
            decode(data[:size])
    with pytest.raises(DeltaFault) as fault:
        decode(data + b"\0")
    assert fault.value.reason == "corrupt"


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, struct.pack("<I", 2), "format"),
        (32, struct.pack("<I", 2), "format"),
        (36, struct.pack("<I", 2**31), "truncated"),
        (40, struct.pack("<Q", 2**60), "truncated"),
        (40, struct.pack("<Q", 0), "format"),
        (16, struct.pack("<Q", 0), "sequence"),
        (16, struct.pack("<Q", 2**63), "sequence"),
        (80, struct.pack("<I", 2**31), "format"),
        (88, b"\xff", "format"),
    ],
)
def test_a_forged_header_is_refused_though_its_checksum_is_right(
    toy_model: Path, offset: int, value: bytes, reason: str
) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])[:-4]
    forged = data[:offset] + value + data[offset + len(value) :]
    with pytest.raises(DeltaFault) as fault:
        decode(forged + struct.pack("<I", crc32c(forged)))
    assert fault.value.reason == reason


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


def test_an_open_file_that_its_server_has_lost_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(path)
    writer.append(1)
    lost = os.stat(path).st_ino
    fstat, close, closed = os.fstat, os.close, []

    def stale(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if found.st_ino == lost and not closed:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return found

    def close_with_error(descriptor: int) -> None:
        is_lost = fstat(descriptor).st_ino == lost
        close(descriptor)
        if is_lost:
            closed.append(descriptor)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stale)
        patched.setattr(os, "close", close_with_error)
        assert writer.append(2) == 2
    assert len(closed) == 1
    assert writer.read() == Writer(path).read() == [(1, 1), (2, 2)]


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


def test_a_file_of_another_writer_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "new" / "1.delta"
    write_whole(file, b"first", is_new=True)
    with pytest.raises(FileExistsError):
        write_whole(file, b"second", is_new=True)
    assert [(path.name, path.read_bytes()) for path in file.parent.iterdir()] == [("1.delta", b"first")]


def test_a_replaced_folder_comes_back_if_the_new_one_never_got_its_name(tmp_path: Path) -> None:
    target, staging = tmp_path / "1", tmp_path / ".fetching-1"
    for folder, text in ((target, "old"), (staging, "new")):
        folder.mkdir()
        (folder / "file").write_text(text)
    target.rename(outdated(target))
    restore_folders(tmp_path)
    assert (target / "file").read_text() == "old"
    publish_folder(staging, target)
    assert [(path.name, (path / "file").read_text()) for path in tmp_path.iterdir()] == [("1", "new")]


def test_a_new_folder_replaces_none(tmp_path: Path) -> None:
    staging, target = tmp_path / "staging", tmp_path / "1"
    for folder in (staging, target):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    with pytest.raises(OSError, match="not empty"):
        publish_folder(staging, target, is_new=True)
    assert (target / "file").read_text() == "1"
    publish_folder(staging, target)
    assert (target / "file").read_text() == "staging"
