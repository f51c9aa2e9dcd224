"""How much memory this process may still take: what the system has, or what its control group leaves it (Linux).

Pages of files count as available, for the kernel takes them back: MemAvailable counts most of them, and of a control
group's usage they are taken off here.

Source: proc_meminfo(5); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst (Linux 6.18).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns how many bytes; None where the kernel does not say. root: where /proc and /sys are."""
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


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yields the folders of this process's groups and of all above them, with what their files are called."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # In a container the path may be the host's, and what is mounted its own group: then only the last one is there.
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder == top or top in folder.parents:
                yield folder, *names


def _number(file: Path) -> int | None:
    # "max": no limit.
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
