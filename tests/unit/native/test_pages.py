"""Reads the counts of the native core's pager, in Python and as metrics."""

from __future__ import annotations

import pytest

from service.engine.counts import PageCounts
from service.observe.own_metrics import page_lines


def test_a_pager_without_tables_has_read_nothing() -> None:
    pytest.importorskip("service._native")
    from service.native.statistics import Pages

    counts = Pages(10 << 20).counts()
    assert counts == PageCounts(rows=0, reads=0, drops=0, losses=0, seconds=0.0, bytes=0, max_bytes=10 << 20)
    # If no table is paged, the server does not show the metrics of pages.
    assert page_lines(counts) == []


def test_metrics_have_all_counts() -> None:
    lines = page_lines(PageCounts(1, 2, 3, 4, 0.5, 6, 7))
    values = [line.removeprefix("embedding_server_paged_") for line in lines if not line.startswith("#")]
    assert values == [
        "cold_rows_total{} 1.0",
        "reads_total{} 2.0",
        "drops_total{} 3.0",
        "losses_total{} 4.0",
        "read_seconds_total{} 0.5",
        "resident_bytes{} 6.0",
        "max_bytes{} 7.0",
    ]
