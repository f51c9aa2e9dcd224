"""Reads from Linux which pages of a memory map are huge, and which are in memory.

Source: PAGEMAP_SCAN(2const), struct pm_scan_arg and PAGE_IS_HUGE of include/uapi/linux/fs.h (Linux 6.7); mincore(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from types import TracebackType
from typing import Any

import numpy as np

from service.types import Array

HUGE_BYTES = 2 << 20

# Linux's struct pm_scan_arg, with the fields size, flags, start, end, walk_end, vec, vec_len, max_pages,
# category_inverted, category_mask, category_anyof_mask, return_mask.
_ARGUMENT = struct.Struct("12Q")
_WALK_END = 4
# The ioctl number of PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg), as x86 and ARM compute it.
_PAGEMAP_SCAN = 3 << 30 | _ARGUMENT.size << 16 | ord("f") << 8 | 16
_IS_HUGE = 1 << 6
# Most address ranges that one PAGEMAP_SCAN call returns; the kernel joins adjacent ranges into one.
_NUM_RANGES = 256
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class PageTable:
    """The page table of this process, opened for reading; a context manager. Concurrency: one caller at a time.

    Raises:
      OSError: the kernel does not show the page table, or (from huge_bytes) does not tell which pages are huge.
    """

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        # Each row of this array is an address range from PAGEMAP_SCAN: start, end, categories.
        self._ranges = np.zeros((_NUM_RANGES, 3), np.uint64)

    def __enter__(self) -> PageTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def huge_bytes(self, address: int, nbytes: int) -> int:
        """Returns how many bytes of an address range of whole pages are mapped by huge pages.

        A page that this process did not read yet is not in its page table, even if the page is in the page cache.
        """
        end, found = address + nbytes, 0
        while address < end:
            ranges = (self._ranges.ctypes.data, _NUM_RANGES)
            argument = bytearray(
                _ARGUMENT.pack(_ARGUMENT.size, 0, address, end, 0, *ranges, 0, 0, _IS_HUGE, 0, _IS_HUGE)
            )
            count = fcntl.ioctl(self._descriptor, _PAGEMAP_SCAN, argument)
            found += int((self._ranges[:count, 1] - self._ranges[:count, 0]).sum())
            address = _ARGUMENT.unpack(argument)[_WALK_END]
        return found


def huge_bytes(array: Array) -> int | None:
    """Returns how many bytes of an array's pages are mapped by huge pages; None if the kernel does not tell."""
    begin = array.ctypes.data & -mmap.PAGESIZE
    end = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        with PageTable() as table:
            return table.huge_bytes(begin, end - begin)
    except OSError:
        return None


def pages_in_memory(address: int, nbytes: int) -> Array:
    """Returns, for each page of an address range, whether it is in the page cache: [P] bool.

    For a file that this user neither owns nor may write to, the kernel reports all pages as in the page cache.
    """
    pages = np.ones(-(-nbytes // mmap.PAGESIZE), np.uint8)
    _libc.mincore(address, nbytes, pages.ctypes.data)
    return (pages & 1).astype(bool)


_PRESENT = np.uint64(1 << 63)
_ENTRY_BYTES = 8
# Number of entries of /proc/self/pagemap that are read at once; they describe 256 MiB of memory.
_CHUNK_PAGES = 1 << 16


def resident_bytes(array: np.ndarray[Any, Any]) -> int | None:
    """Returns how many bytes of an array's pages are in this process's page table; None if the kernel does not tell.

    The call takes 0.1 s for each 100 GB of a table.
    """
    first = array.ctypes.data // mmap.PAGESIZE
    end = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE)
    present = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for page in range(first, end, _CHUNK_PAGES):
                size = min(_CHUNK_PAGES, end - page) * _ENTRY_BYTES
                entries = np.frombuffer(os.pread(pagemap.fileno(), size, page * _ENTRY_BYTES), "<u8")
                present += int(np.count_nonzero(entries & _PRESENT))
    except OSError:
        return None
    return present * mmap.PAGESIZE
