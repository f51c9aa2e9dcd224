"""Reads from Linux how much memory this process may use, and still use, by the system's and its control groups' limits.

Pages of the page cache count as available, because the kernel can free them. MemAvailable includes most of them; they
are subtracted from a control group's usage here.

Source: proc_meminfo(5); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst (Linux 6.18).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns the bytes of memory that this process may still use.

    Returns None if the kernel does not show them. root: the folder above /proc and /sys.
    """
    found = []
    meminfo = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in meminfo:
        found.append(meminfo["MemAvailable:"] * 1024)
    for folder, limit, usage, prefix in _groups(root):
        most, used = _number(folder / limit), _number(folder / usage)
        if most is not None and used is not None:
            held = _numbers(folder / "memory.stat")
            of_files = sum(held.get(f"{prefix}{kind}", 0) for kind in ("inactive_file", "active_file"))
            found.append(max(most - max(used - of_files, 0), 0))
    return min(found, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Returns the bytes of memory that this process may use in all: the least of the system's memory and its control
    groups' limits.

    Returns None if the kernel does not show them. root: the folder above /proc and /sys.
    """
    found = []
    meminfo = _numbers(root / "proc/meminfo")
    if "MemTotal:" in meminfo:
        found.append(meminfo["MemTotal:"] * 1024)
    limits = (_number(folder / limit) for folder, limit, _, _ in _groups(root))
    return min((*found, *(most for most in limits if most is not None)), default=None)


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yields, for each memory control group of this process and its parents: folder, names of the files of limit and
    usage, and the prefix of keys in memory.stat.
    """
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # In a container, /proc/self/cgroup may show the host's path of the control group, while the container sees the
        # group as the top folder: then only the top folder exists.
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder == top or top in folder.parents:
                yield folder, *names


def _number(file: Path) -> int | None:
    # If a control group has no limit, its limit file says "max" in place of a number.
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _numbers(file: Path) -> dict[str, int]:
    parts = [line.split() for line in _lines(file)]
    return {words[0]: int(words[1]) for words in parts if len(words) > 1 and words[1].isdigit()}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
