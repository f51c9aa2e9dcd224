"""Decides whether the native core reads a version's tables by pages of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.configuration.settings_reading import read_settings
from service.loading.table_pages import PagedTables, mapped_bytes, paged_tables
from service.tables.table import MappedTable
from tests.stored_tables import store


@pytest.fixture
def tables() -> dict[str, MappedTable]:
    """Table "t" of 4 rows of 8 float32: 128 bytes."""
    return {"t": store(np.ones((4, 8), np.float32)).mapped}


@pytest.mark.parametrize(
    ("rule", "max_bytes", "other", "expected"),
    [
        ("auto", 128, 0, "fits"),
        ("auto", 127, 0, "larger"),
        # The tables of other versions count as used memory, too.
        ("auto", 128, 1, "larger"),
        ("on", 1 << 40, 0, "larger"),
        ("off", 1, 0, "off"),
    ],
)
def test_tables_are_larger_than_memory_if_they_do_not_fit(
    tables: dict[str, MappedTable], rule: str, max_bytes: int, other: int, expected: str
) -> None:
    paged = PagedTables(rule, max_bytes, lambda: other)  # type: ignore[arg-type]
    assert paged.paging(Path("/m/1"), tables) == expected


def test_a_version_without_mapped_tables_is_not_paged() -> None:
    assert PagedTables("on", 0).paging(Path("/m/1"), {}) == "off"


def test_scales_count_as_bytes_of_a_table() -> None:
    assert mapped_bytes({"t": store(np.ones((4, 8), np.float32), "int8").mapped}) == 4 * 8 + 4 * 4


def test_the_bound_is_a_share_of_the_limit_of_the_control_group(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": "MemTotal: 24000 kB\n",
        "proc/self/cgroup": "4:memory:/pod\n",
        "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "10000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def rule(*flags: str) -> PagedTables:
        return paged_tables(read_settings(["--model_base_path=/m", *flags]), lambda: 0, tmp_path)

    assert (rule().rule, rule().max_bytes) == ("auto", 7_000_000)
    assert rule("--paged_tables_mib=3").max_bytes == 3 << 20
    assert rule("--paged_tables=on").rule == "on"
    # These settings keep all pages of the tables in memory.
    assert rule("--warm=tables").rule == rule("--table_lock=try").rule == "off"
