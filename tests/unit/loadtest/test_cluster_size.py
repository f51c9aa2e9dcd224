"""The size of a cluster is computed from its figures, and docs/scaling.md shows the script's output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.cluster_size import FIGURES, Choices, report, size_of

SCALING = Path("docs/scaling.md").read_text()


def test_the_page_has_the_report() -> None:
    assert report(Choices()) in SCALING


def test_memory_holds_each_row_of_each_copy_and_version() -> None:
    size = size_of(Choices(tables_gb=256, copies=3, versions=1, node_gb=100, used=0.5))
    assert size.memory_gb == pytest.approx(262 * 3)
    assert (size.nodes_by_memory, size.nodes) == (16, 18)


def test_a_load_that_the_memory_does_not_ask_for_adds_nodes() -> None:
    small = Choices(tables_gb=1, rows_per_s=1e7)
    size = size_of(small)
    assert size.node_cores == pytest.approx(13.5)
    assert (size.primaries_by_cpu, size.nodes) == (27, 54)
    half = size_of(replace(small, hit_rate=0.5))
    assert half.cluster_gbit_s == pytest.approx(size.cluster_gbit_s / 2)
    assert half.server_cores == size.server_cores
    assert half.nodes == 28


def test_no_cluster_has_fewer_than_three_primaries() -> None:
    assert size_of(Choices(tables_gb=1, rows_per_s=1)).nodes == 6


def test_each_figure_says_where_it_was_measured() -> None:
    assert all(one.value > 0 and one.where for one in FIGURES)
    for one in FIGURES:
        section, _, _ = one.where.partition(",")
        assert section.startswith("ADR ") or f"# {section}\n" in SCALING, section
