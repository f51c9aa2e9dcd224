"""Memory that a server may still take, computed from the files of systems and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.loading.table_pages import available_bytes, memory_limit_bytes

V1_STAT = "total_inactive_file 3000\ntotal_active_file 1000\ninactive_file 1\n"
MEMINFO = "MemTotal:       24000 kB\nMemAvailable:   20000 kB\n"
SYSTEM = 20000 * 1024


def write(root: Path, files: dict[str, str]) -> Path:
    """Writes files of a system under a root folder, and returns the root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, SYSTEM),
        ({"proc/meminfo": "MemTotal: 1 kB\nMemAvailable: none\n\n"}, None),
        # Version 2 of control groups, in a container: the process sees its own group as the root.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "10000\n",
                "sys/fs/cgroup/memory.current": "7000\n",
                "sys/fs/cgroup/memory.stat": "anon 2000\nfile 5000\ninactive_file 4000\nactive_file 500\n",
            },
            10000 - 7000 + 4500,
        ),
        # The process's own control group has no limit, but the group above it has one.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/pods/one/main\n",
                "sys/fs/cgroup/pods/one/main/memory.max": "max\n",
                "sys/fs/cgroup/pods/one/main/memory.current": "1\n",
                "sys/fs/cgroup/pods/one/memory.max": "5000\n",
                "sys/fs/cgroup/pods/one/memory.current": "6000\n",
            },
            0,
        ),
        # Version 1 of control groups in a container: the path is that of the host, but the folder at the top is the
        # container's own group.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "10000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/memory.stat": V1_STAT,
            },
            10000 - 9000 + 4000,
        ),
        # "No limit" in version 1 of control groups: a number larger than any memory.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
            },
            SYSTEM,
        ),
    ],
    ids=["nothing", "no group", "no number", "version 2", "group above", "version 1", "no limit"],
)
def test_the_least_of_all_limits_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert available_bytes(write(tmp_path, files)) == expected


def test_this_system_says_something() -> None:
    found = available_bytes()
    assert found is None or found > 1 << 20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 24000 * 1024),
        # The lowest limit counts: that of the group itself or of a group above it.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/pods/one\n",
                "sys/fs/cgroup/pods/one/memory.max": "max\n",
                "sys/fs/cgroup/pods/memory.max": "5000\n",
            },
            5000,
        ),
        # Version 1 of control groups shows "no limit" as a number larger than any memory.
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            24000 * 1024,
        ),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert memory_limit_bytes(write(tmp_path, files)) == expected
