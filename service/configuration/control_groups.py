"""Counts the processors and the memory that this process may use, by the system's and its control groups' limits.

Pages of the page cache count as available memory, because the kernel can free them. MemAvailable includes most of them;
they are subtracted from a control group's usage here.

Source: sched(7); proc_meminfo(5); proc_pid_status(5); getrlimit(2); Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst and scheduler/sched-bwc.rst (Linux 6.18).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def num_processors(root: Path = Path("/")) -> int:
    """Returns the number of processors for this process's threads, at least 1; a quota of 1.5 processors counts as 2.

    More threads than the quota would spend it in the first part of each period, and then all wait for its end.
    root: the folder above /proc and /sys.
    """
    found = [len(os.sched_getaffinity(0))]
    for folder, is_first in _groups("cpu", root):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        quota, period, *_ = *(word for file in files for line in _lines(folder / file) for word in line.split()), "", ""
        # A group without a quota has the word "max", or the number -1.
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(max(1, math.ceil(int(quota) / int(period))))
    return min(found)


def available_bytes(root: Path = Path("/")) -> int | None:
    found = []
    meminfo = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in meminfo:
        found.append(meminfo["MemAvailable:"] * 1024)
    for folder, is_first in _groups("memory", root):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
        most, used = _number(folder / f"memory.{limit}"), _number(folder / f"memory.{usage}")
        if most is not None and used is not None:
            held, prefix = _numbers(folder / "memory.stat"), "total_" if is_first else ""
            of_files = sum(held.get(f"{prefix}{kind}", 0) for kind in ("inactive_file", "active_file"))
            found.append(max(most - max(used - of_files, 0), 0))
    return min(found, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Returns the least of the system's memory and its control groups' limits; None if the kernel shows neither."""
    found = []
    meminfo = _numbers(root / "proc/meminfo")
    if "MemTotal:" in meminfo:
        found.append(meminfo["MemTotal:"] * 1024)
    for folder, is_first in _groups("memory", root):
        limit = _number(folder / ("memory.limit_in_bytes" if is_first else "memory.max"))
        found += [] if limit is None else [limit]
    return min(found, default=None)


def swap_bytes(root: Path = Path("/")) -> int:
    return 1024 * _numbers(root / "proc/meminfo").get("SwapTotal:", 0)


def private_bytes(root: Path = Path("/")) -> tuple[int, int] | None:
    """Returns how much private memory this process has mapped, as RLIMIT_DATA counts it, and how much of that it holds.

    The rest was not touched yet, such as most of each thread's stack. None: the kernel does not show it.
    """
    status = _numbers(root / "proc/self/status")
    if not {"VmData:", "RssAnon:"} <= status.keys():
        return None
    return 1024 * status["VmData:"], 1024 * status["RssAnon:"]


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yields the folders of this process's control groups and of the groups above them, and whether their files are of
    version 1.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # In a container, /proc/self/cgroup may show the host's path of the control group, while the container sees the
        # group as the top folder: then only the top folder exists.
        top = root / "sys/fs/cgroup" / controllers
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder == top or top in folder.parents:
                yield folder, bool(controllers)


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
