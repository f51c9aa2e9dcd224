"""The kernel reads, locks and is advised about the pages of tables as the settings say, checked on real files."""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from service.errors import ArtifactError
from service.tables import residency
from service.tables.residency import STATISTICS_PATH, Residency, hottest_rows
from service.tables.table import MappedTable
from service.types import TableInfo

PAGE = mmap.PAGESIZE
DIM = 64
ROWS_PER_PAGE = PAGE // (4 * DIM)
# The table begins in the middle of a page, like most tables that follow another tensor in a file.
OFFSET = 2 * PAGE + 128
NUM_PAGES = 512
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MappedTable]:
    """Yields a mapped table of which no page is in memory."""
    file = tmp_path / "shard"
    file.write_bytes(np.random.default_rng(0).bytes(OFFSET + NUM_PAGES * PAGE))
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    rows = NUM_PAGES * ROWS_PER_PAGE
    weights = np.frombuffer(mapped, "<f4", rows * DIM, OFFSET).reshape(rows, DIM)
    table = MappedTable(TableInfo("film", rows, DIM, "float32", weights.nbytes, ()), weights)
    if held(table).any():
        pytest.skip("this file system keeps pages that it was told to drop")
    yield table


def held(table: MappedTable) -> np.ndarray:
    """Returns, for each page of a table, whether it is in memory."""
    begin = table.weights.ctypes.data & -PAGE
    count = (table.weights.ctypes.data + table.weights.nbytes - begin + PAGE - 1) // PAGE
    found = np.zeros(count, np.uint8)
    assert LIBC.mincore(begin, count * PAGE, found.ctypes.data) == 0
    return (found & 1).astype(bool)


def smaps(table: MappedTable, field: str) -> str:
    """Returns one field of /proc/self/smaps for the table's map."""
    address, is_here = table.weights.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            is_here = begin <= address < end
        elif is_here and name == f"{field}:":
            return " ".join(values)
    raise AssertionError(field)


def test_by_default_nothing_is_read(table: MappedTable, tmp_path: Path) -> None:
    Residency().apply(tmp_path, {"film": table})
    assert not held(table).any()


@pytest.mark.parametrize("populate", [residency.POPULATE_READ, 9999], ids=["in one call", "before Linux 5.14"])
def test_prefault_reads_and_maps_every_page(
    table: MappedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, populate: int
) -> None:
    monkeypatch.setattr(residency, "POPULATE_READ", populate)
    monkeypatch.setattr(residency, "_CHUNK_BYTES", 100 * PAGE)
    Residency(is_prefaulted=True).apply(tmp_path, {"film": table})
    assert held(table).all()
    assert int(smaps(table, "Rss").split()[0]) * 1024 >= table.weights.nbytes


def test_a_long_read_tells_of_its_progress(
    table: MappedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(residency, "_CHUNK_BYTES", 128 * PAGE)
    # A chunk takes 4 s.
    times_s = itertools.count(0, 4)
    with caplog.at_level(logging.INFO):
        Residency(is_prefaulted=True).apply(tmp_path, {"film": table}, clock=lambda: next(times_s))
    told = [record.__dict__["bytes"] for record in caplog.records]
    # Progress is logged at most every 5 s, so after two chunks of 4 s each; a last record comes at the end.
    assert [round(nbytes / PAGE) for nbytes in told] == [256, 512, 512]


def test_advice_reaches_the_map(table: MappedTable, tmp_path: Path) -> None:
    assert "rr" not in smaps(table, "VmFlags").split()
    Residency(advice="random").apply(tmp_path, {"film": table})
    assert "rr" in smaps(table, "VmFlags").split()
    # With MADV_RANDOM, reading a row maps one page, and the kernel reads none ahead.
    float(table.weights[100 * ROWS_PER_PAGE, 0])
    assert held(table).sum() == 1


def test_all_is_read_ahead_before_it_is_read_at_random(table: MappedTable, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    Residency(is_prefaulted=True, advice="random").apply(tmp_path, {"film": table})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before < NUM_PAGES // 4
    assert held(table).all()
    assert "rr" in smaps(table, "VmFlags").split()


def test_advice_that_is_not_taken_is_a_warning(
    table: MappedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Not each kernel has huge pages for files. No kernel knows advice 9999, so it stands for a kernel that lacks them.
    monkeypatch.setattr(residency, "_ADVICE", {**residency._ADVICE, "huge": 9999})
    Residency(advice="huge").apply(tmp_path, {"film": table})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.__dict__["advice"] == "huge"


def test_locked_pages_are_all_there(table: MappedTable, tmp_path: Path) -> None:
    Residency(lock="require").apply(tmp_path, {"film": table})
    assert held(table).all()
    assert "lo" in smaps(table, "VmFlags").split()


@pytest.mark.parametrize("rule", ["try", "require"])
def test_a_limit_on_locked_memory_is_named(
    table: MappedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rule: str
) -> None:
    # Root may lock more memory than the limit allows, so the test replaces mlock() by one that fails with ENOMEM.
    def mlock(_address: int, _nbytes: int) -> int:
        ctypes.set_errno(12)
        return -1

    monkeypatch.setattr(residency.LIBC, "mlock", mlock)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    rules = Residency(lock="require" if rule == "require" else "try")
    if rule == "require":
        with pytest.raises(
            ArtifactError, match=r"'film'.*Cannot allocate memory.*allows this process 65536.*ulimit -l"
        ):
            rules.apply(tmp_path, {"film": table})
        return
    rules.apply(tmp_path, {"film": table})
    (record,) = caplog.records
    assert "RLIMIT_MEMLOCK" in record.__dict__["reason"]


def write_statistics(artifact: Path, name: str, ids: object, file: str = "lookup_statistics_1.json") -> None:
    folder = artifact / STATISTICS_PATH
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps({"table": {"name": name}, "counts": {"ids": ids}}))


def test_warming_reads_the_hot_rows_and_not_the_table(table: MappedTable, tmp_path: Path) -> None:
    # The row of 256 bytes begins 128 bytes before the end of a page, so it is on two pages.
    two_pages = 300 * ROWS_PER_PAGE - 1
    offset = table.weights.ctypes.data % PAGE
    assert (offset + two_pages * 256) % PAGE + 256 > PAGE
    ids = [0, 40 * ROWS_PER_PAGE, two_pages]
    write_statistics(tmp_path, "film", ids)
    Residency(advice="random", is_warmed=True).apply(tmp_path, {"film": table})
    found = held(table)
    first = [(offset + row * 256) // PAGE for row in ids]
    assert set(np.flatnonzero(found)) == {*first, first[2] + 1}


def test_statistics_of_another_table_warm_nothing(table: MappedTable, tmp_path: Path) -> None:
    write_statistics(tmp_path, "film", [1, NUM_PAGES * ROWS_PER_PAGE])
    write_statistics(tmp_path, "other", [1], "lookup_statistics_2.json")
    Residency(is_warmed=True).apply(tmp_path, {"film": table})
    assert not held(table).any()


def test_damaged_statistics_are_left_out_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_statistics(tmp_path, "film", [7, 3, -1, 3])
    folder = tmp_path / STATISTICS_PATH
    for i, text in enumerate(
        ["{", "[]", '{"table": 1}', '{"table": {"name": "a"}, "counts": {"ids": [1e400, 2]}}', "\xff"]
    ):
        (folder / f"lookup_statistics_bad{i}.json").write_bytes(text.encode("latin-1"))
    found = list(hottest_rows(tmp_path))
    assert [(name, ids.tolist()) for name, ids in found] == [("film", [3, 3, 7])]
    assert len(caplog.records) == 5


def test_an_artifact_without_statistics_has_no_hot_rows(tmp_path: Path) -> None:
    assert list(hottest_rows(tmp_path)) == []
