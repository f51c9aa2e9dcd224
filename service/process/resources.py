"""Limits of this process: file descriptors and connections, and the freed memory that malloc keeps.

An answer of 2.6 MB is a block that glibc takes from the kernel and gives back, and the kernel clears 640 pages for it
each time: half of the processor time of such a request (docs/performance.md).

Source: mallopt(3) and the constants of glibc's malloc.h; malloc's DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB.
"""

from __future__ import annotations

import ctypes
import resource

# For files of models, listeners, logs and TensorFlow; connections must not take them. Of few it is half.
_SPARE = 128


def raise_descriptor_limit() -> int:
    """Lets this process open as many files as it may at most, and returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections(configured: int) -> int:
    """Returns how many HTTP connections there may be; 0 asks for half of what descriptors allow, gRPC has the other."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(soft - min(_SPARE, soft // 2), 2)
    return min(configured or possible // 2, possible)


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
