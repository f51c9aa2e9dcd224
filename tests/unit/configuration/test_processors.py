"""The number of processors follows the CPU quotas of both versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.configuration.server_settings import num_processors

V1 = "4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/pod/app\n", {}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000\n"}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "50000 100000\n"}, 1),
        ("0::/pod/app\n", {"pod/app/cpu.max": "250000 100000\n"}, 3),
        ("0::/pod/app\n", {"pod/app/cpu.max": "400000 100000\n", "pod/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/../other\n", {"cpu.max": "9900000 100000\n"}, 8),
        (V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 8),
        (V1, {f"cpu,cpuacct/docker/abc/cpu.cfs_{name}_us": f"{n}\n" for name, n in [("quota", 5), ("period", 10)]}, 1),
        (V1, {f"cpu,cpuacct/cpu.cfs_{name}_us": f"{n}\n" for name, n in [("quota", 40), ("period", 20)]}, 2),
    ],
)
def test_a_quota_limits_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert num_processors(tmp_path / "groups", tmp_path / "own") == expected


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert num_processors(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))
