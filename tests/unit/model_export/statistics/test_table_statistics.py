"""Compares statistics of a table's lookups with numbers worked out by hand on few rows, and with numpy on many."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from model_export.statistics.table_statistics import HotId, TableDescription, TableStatistics

FILM = TableDescription("film", 10, 4, "mean", ("liked", "seen"))


def seen(*rows: list[int], **arguments: Any) -> TableStatistics:
    """Returns the statistics of rows of ids in the table of films."""
    values = np.array([number for row in rows for number in row], np.int64)
    splits = np.cumsum([0, *(len(row) for row in rows)])
    return TableStatistics.empty(FILM, partitions=4, **arguments).with_rows(values, splits)


def test_numbers_are_those_of_the_rows() -> None:
    statistics = seen([1, 1, 9], [], [4], [1, 9])
    assert (statistics.examples, statistics.ids, statistics.bad_ids) == (4, 6, 0)
    assert (statistics.mean_ids_per_example, statistics.max_ids_per_example) == (1.5, 3)
    assert statistics.ids_per_example_histogram[:5].tolist() == [1, 1, 1, 1, 0]
    assert (statistics.distinct_ids, statistics.distinct_is_exact) == (3, True)
    assert statistics.hot_ids(2) == [HotId(1, 3, 0.5), HotId(9, 2, 1 / 3)]


def test_balance_is_that_of_both_layouts() -> None:
    # 10 rows on 4 hosts: div has 0-2, 3-5, 6-7, 8-9; mod has i % 4.
    statistics = seen([0, 4, 8], [0, 1, 9])
    assert statistics.partition_loads == {"div": (3, 1, 0, 2), "mod": (4, 2, 0, 0)}
    assert statistics.imbalance("div") == 3 / 1.5
    assert statistics.imbalance("mod") == 4 / 1.5


def test_rows_longer_than_the_histogram_share_its_last_bin() -> None:
    statistics = seen([3] * 1023, [3] * 1024, [3] * 5000)
    assert statistics.ids_per_example_histogram[1023:].tolist() == [1, 2]
    assert statistics.max_ids_per_example == 5000


def test_ids_outside_the_table_are_counted_apart() -> None:
    statistics = seen([-1, 3, 10], [3])
    assert (statistics.ids, statistics.bad_ids, statistics.mean_ids_per_example) == (2, 2, 2.0)
    assert statistics.hot_ids(9) == [HotId(3, 2, 1.0)]
    assert sum(statistics.partition_loads["div"]) == 2


def test_nothing_seen_says_so() -> None:
    nothing = TableStatistics.empty(FILM, partitions=2)
    assert (nothing.mean_ids_per_example, nothing.distinct_ids) == (0.0, 0)
    assert (nothing.hot_ids(3), nothing.imbalance("mod")) == ([], 1.0)


def test_parts_merge_to_the_whole() -> None:
    rows = [[1, 1, 9], [], [4], [1, 9], [-5, 2]]
    whole, parts = seen(*rows), seen(*rows[:2]).merged(seen(*rows[2:]))
    for field in dataclasses.fields(TableStatistics):
        if field.name != "counts":
            np.testing.assert_array_equal(getattr(parts, field.name), getattr(whole, field.name))
    assert parts.hot_ids(10) == whole.hot_ids(10)


def test_tables_that_differ_do_not_merge() -> None:
    other = TableStatistics.empty(dataclasses.replace(FILM, vocabulary_size=11), partitions=4)
    with pytest.raises(ValueError, match="do not add"):
        seen([1]).merged(other)


def test_beyond_its_capacity_it_estimates_and_says_so() -> None:
    table = dataclasses.replace(FILM, vocabulary_size=50_000)
    ids = np.random.default_rng(0).permutation(50_000)[:30_000]
    empty = TableStatistics.empty(table, partitions=4, capacity=1000)
    statistics = empty.with_rows(np.concatenate([ids, [7] * 2000]), np.array([0, 32_000]))
    assert not statistics.distinct_is_exact
    assert statistics.distinct_ids == pytest.approx(30_000, rel=0.08)
    assert statistics.hot_ids(1)[0].id == 7
    assert len(statistics.counts.ids) <= 1000


def test_the_estimate_is_never_above_the_tables_rows() -> None:
    table = dataclasses.replace(FILM, vocabulary_size=5_000)
    empty = TableStatistics.empty(table, partitions=4, capacity=10)
    assert empty.with_rows(np.arange(5_000), np.array([0, 5_000])).distinct_ids <= 5_000


@pytest.mark.parametrize("arguments", [{"partitions": 0}, {"partitions": 2, "capacity": 0}])
def test_sizes_of_nothing_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        TableStatistics.empty(FILM, **arguments)


def test_a_key_is_the_same_in_another_process() -> None:
    code = (
        "from model_export.statistics.table_statistics import TableDescription\n"
        "print(TableDescription('film', 10, 4, 'mean', ('seen', 'liked')).key(8), end='')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == FILM.key(8)
    assert len(FILM.key(8)) == 16


def test_a_key_goes_with_everything_that_configures_the_table() -> None:
    others = [
        dataclasses.replace(FILM, name="films"),
        dataclasses.replace(FILM, vocabulary_size=11),
        dataclasses.replace(FILM, embedding_dim=5),
        dataclasses.replace(FILM, combiner="sum"),
        dataclasses.replace(FILM, features=("liked",)),
        dataclasses.replace(FILM, partition_strategy="mod"),
    ]
    keys = {FILM.key(8), FILM.key(4), *(other.key(8) for other in others)}
    assert len(keys) == 8
