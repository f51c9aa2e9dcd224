"""Counts the processors that this process may use: its affinity, and the CPU quota of its control groups.

Source: sched(7); docs.kernel.org admin-guide/cgroup-v2 (cpu.max) and scheduler/sched-bwc (cpu.cfs_quota_us).
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path


def num_processors(groups: Path = Path("/sys/fs/cgroup"), own_groups: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the number of processors for this process's threads, at least 1; a quota of 1.5 processors counts as 2.

    More threads than the quota would spend it in the first part of each period, and then all wait for its end.

    Args:
      groups: where the hierarchies of control groups are mounted.
      own_groups: file that lists the control groups of this process.
    """
    return min([len(os.sched_getaffinity(0)), *(max(1, math.ceil(quota)) for quota in _quotas(groups, own_groups))])


def _quotas(groups: Path, own_groups: Path) -> list[float]:
    """Returns the quotas, in processors, of this process's control groups and of the groups above them."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own_groups.read_text().splitlines()
    found: list[float] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / controllers
        place = root / group.lstrip("/")
        # A container may see the names of its groups on the host, of which only the top is mounted: the groups that do
        # not exist here have no quota.
        for folder in (place, *place.parents):
            found += _version_1(folder) if controllers else _version_2(folder)
            if folder == root:
                break
    return found


def _version_2(folder: Path) -> list[float]:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return [int(quota) / int(period)] if quota.isdigit() and int(period or 0) else []


def _version_1(folder: Path) -> list[float]:
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return [int(quota) / int(period)] if quota.isdigit() and int(period or 0) else []


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
