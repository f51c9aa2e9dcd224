"""File descriptors: as many as the system allows, and fewer connections than that."""

from __future__ import annotations

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
