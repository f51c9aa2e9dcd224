"""Writes files for tests of huge pages, and checks whether the file system has huge pages for files.

It reads the kernel's smaps; the service uses PAGEMAP_SCAN.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

HUGE = 2 << 20
_PIECE = 64 << 10
# More than the largest file of a test.
_PROBED = 24 * HUGE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_HUGE_PAGE, _POPULATE_READ = 14, 22


def write_in_pieces(path: Path, nbytes: int, seed: int = 0) -> np.ndarray:
    """Writes random bytes to a file in small pieces, as a copying program does, and returns the bytes."""
    octets = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    with path.open("wb", buffering=0) as file:
        for begin in range(0, nbytes, _PIECE):
            file.write(octets[begin : begin + _PIECE].tobytes())
    return octets


def drop(path: Path) -> None:
    """Removes a file's pages from the page cache; the file must not be mapped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def smaps_bytes(octets: np.ndarray, field: str) -> int:
    """Returns the sum of one field of /proc/self/smaps over all maps that hold an array."""
    begin, end = octets.ctypes.data, octets.ctypes.data + octets.nbytes
    is_here, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            first, behind = (int(part, 16) for part in name.split("-"))
            is_here = first < end and begin < behind
        elif is_here and name == f"{field}:":
            total += int(values[0]) * 1024
    return total


def need_large_folios(folder: Path) -> None:
    """Skips the test if the kernel makes no huge pages for a mapped file even after madvise(), or has too few now."""
    huge = _probed(folder)
    if not huge:
        pytest.skip("needs a file system with large folios: XFS, or ext4 on Linux 6.16 or later")
    if huge < _PROBED:
        pytest.skip(f"the kernel finds only {huge // HUGE} free huge pages: memory is full or fragmented")


def _probed(folder: Path) -> int:
    """Returns the number of bytes in huge pages after a file of _PROBED bytes was mapped and read."""
    path = folder / "probe"
    write_in_pieces(path, _PROBED)
    drop(path)
    with path.open("rb") as file:
        octets = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    LIBC.madvise(octets.ctypes.data, octets.nbytes, _HUGE_PAGE)
    LIBC.madvise(octets.ctypes.data, octets.nbytes, _POPULATE_READ)
    huge = smaps_bytes(octets, "FilePmdMapped")
    path.unlink()
    return huge
