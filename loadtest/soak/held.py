"""Reads how much memory, and how many file descriptors and threads, a server process has now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from loadtest.live_server import held_by


@dataclass(frozen=True, slots=True)
class HeldNow:
    """Memory, file descriptors and threads of a server process; report.Sample describes the fields."""

    pss_mib: float
    private_mib: float
    anonymous_mib: float
    descriptors: int
    deleted_maps: int
    threads: int
    cpu_s: float


def held_now(pid: int) -> HeldNow:
    """Reads the memory, descriptors and threads of a process; raises OSError if the process has ended."""
    held = held_by(pid)
    # In /proc/PID/stat, the process name in parentheses may hold spaces. Of the fields after it, the 12th and 13th are
    # user and system time, and the 18th is the number of threads.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return HeldNow(
        held.pss_mib,
        held.private_mib,
        _anonymous_mib(pid),
        held.descriptors,
        Path(f"/proc/{pid}/maps").read_text().count(" (deleted)\n"),
        int(fields[17]),
        (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )


def _anonymous_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if "Anonymous:" in line]
    return int(line.split()[1]) / 1024
