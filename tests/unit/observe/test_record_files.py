"""Files of records are begun, closed and removed, and never end with half a record."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from service.artifact.tf_record import MAX_WARMUP_RECORDS, read_records
from service.observe.request_logs import RecordFiles
from tests.toy_model import masked_crc32c


def files_in(folder: Path) -> dict[str, list[bytes]]:
    """Returns the records in each file, by the file's name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = list(read_records(file, masked_crc32c))
    return found


def new(folder: Path, *, max_bytes: int = 1 << 24) -> RecordFiles:
    return RecordFiles(str(folder / "m"), max_bytes=max_bytes, now=lambda: 1_700_000_000.0)


def name(number: int, suffix: str = ".tfrecord") -> str:
    return f"m-20231114T221320-{os.getpid()}-{number:04d}{suffix}"


def test_a_file_is_a_part_until_it_is_closed(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"one", b"two"])
    assert files_in(tmp_path) == {name(1, ".tfrecord.part"): [b"one", b"two"]}
    files.close()
    assert files_in(tmp_path) == {name(1): [b"one", b"two"]}
    files.close()
    files.append([b"three"])
    files.close()
    assert list(files_in(tmp_path)) == [name(1), name(2)]


def test_no_file_is_larger_than_it_may_be_and_the_oldest_go(tmp_path: Path) -> None:
    # With its header and checksums, a record of 84 bytes takes 100 bytes, so a file of 200 bytes, a sixteenth of 3200,
    # has two.
    files = new(tmp_path, max_bytes=3200)
    files.append([bytes([n]) * 84 for n in range(37)])
    files.close()
    found = files_in(tmp_path)
    assert list(found) == [name(number) for number in range(4, 20)]
    assert [record[0] for records in found.values() for record in records] == [*range(6, 37)]


def test_no_file_holds_more_records_than_a_warm_up_takes(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"x"] * (MAX_WARMUP_RECORDS + 1))
    files.close()
    assert [len(records) for records in files_in(tmp_path).values()] == [MAX_WARMUP_RECORDS, 1]


def test_others_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "n-1.tfrecord").write_bytes(b"")
    (tmp_path / "m-notes.txt").write_bytes(b"")
    files = new(tmp_path, max_bytes=1)
    files.append([b"a", b"b", b"c"])
    files.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name(3), "m-notes.txt", "n-1.tfrecord"]


def test_of_a_record_that_does_not_fit_on_the_disk_nothing_stays(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"whole"])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # RLIMIT_FSIZE acts like a full disk: a part of the record is written, then the write fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
        with pytest.raises(OSError):
            files.append([b"x" * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    files.append([b"next"])
    files.close()
    assert files_in(tmp_path) == {name(1): [b"whole", b"next"]}
