"""How the C library's malloc treats memory that was freed: kept for the next answer, up to a limit.

An answer of 2.6 MB is a block that glibc takes from the kernel and gives back, and the kernel clears 640 pages for it
each time: half of the processor time of such a request (docs/performance.md).

Source: mallopt(3) and the constants of glibc's malloc.h; malloc's DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 << 20
# Each arena keeps so much by itself, and threads beyond these share: few, for there is one interpreter lock.
_ARENAS = 2


def keep_freed_memory(mib: int) -> bool:
    """Lets malloc keep up to so many MiB in each of two arenas; call before threads start. 0 changes nothing.

    Returns:
      Whether it does now; False with another C library than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if not mib or mallopt is None:
        return False
    settings = {
        _TRIM_THRESHOLD: mib << 20,
        _MMAP_THRESHOLD: min(mib << 20, _LARGEST_MMAP_THRESHOLD),
        _ARENA_MAX: _ARENAS,
    }
    return all([mallopt(name, value) == 1 for name, value in settings.items()])
