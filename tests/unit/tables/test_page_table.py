"""The page table says which pages are huge and which are in memory, as smaps and earlier reads say."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from service.tables import huge_pages
from service.tables.huge_pages import PageTable, huge_bytes, pages_in_memory
from tests.large_folios import HUGE, LIBC, drop, need_large_folios, smaps_bytes, write_in_pieces

PAGE = mmap.PAGESIZE


def mapped(path: Path) -> np.ndarray:
    """Returns a file's octets."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def test_huge_pages_are_told_from_small_ones(tmp_path: Path) -> None:
    need_large_folios(tmp_path)
    write_in_pieces(tmp_path / "file", 8 * HUGE)
    drop(tmp_path / "file")
    octets = mapped(tmp_path / "file")
    assert huge_bytes(octets) == 0
    # Every other stretch of 2 MiB becomes a huge page, so the ranges of huge pages do not touch.
    LIBC.madvise(octets.ctypes.data, octets.nbytes, 14)
    for begin in range(0, 8 * HUGE, 2 * HUGE):
        LIBC.madvise(octets.ctypes.data + begin, HUGE, 22)
    assert huge_bytes(octets) == smaps_bytes(octets, "FilePmdMapped") == 4 * HUGE
    # A slice that begins and ends inside a huge page: its two pages count as parts of it.
    assert huge_bytes(octets[PAGE + 1 : 2 * PAGE + 1]) == 2 * PAGE


def test_more_ranges_than_one_call_tells_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_NUM_RANGES", 1)
    test_huge_pages_are_told_from_small_ones(tmp_path)


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    # No kernel knows this ioctl number, so it stands for a kernel before Linux 6.7, which lacks PAGEMAP_SCAN.
    monkeypatch.setattr(huge_pages, "_PAGEMAP_SCAN", 3 << 30 | 96 << 16 | ord("f") << 8 | 99)
    assert huge_bytes(np.zeros(PAGE, np.uint8)) is None
    with PageTable() as table, pytest.raises(OSError):
        table.huge_bytes(0, PAGE)


def test_pages_in_memory_are_those_that_were_read(tmp_path: Path) -> None:
    write_in_pieces(tmp_path / "file", 64 * PAGE + 1)
    assert pages_in_memory((octets := mapped(tmp_path / "file")).ctypes.data, octets.nbytes).tolist() == [True] * 65
    del octets
    drop(tmp_path / "file")
    octets = mapped(tmp_path / "file")
    if pages_in_memory(octets.ctypes.data, octets.nbytes).any():
        pytest.skip("this file system keeps pages that it was told to drop")
    LIBC.madvise(octets.ctypes.data, octets.nbytes, mmap.MADV_RANDOM)
    int(octets[7 * PAGE])
    assert np.flatnonzero(pages_in_memory(octets.ctypes.data, octets.nbytes)).tolist() == [7]


def test_a_kernel_that_does_not_tell_what_is_in_memory_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages._libc, "mincore", lambda *_: -1)
    assert pages_in_memory(0, 3 * PAGE).all()
