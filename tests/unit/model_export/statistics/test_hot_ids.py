"""Counts of ids are exact while the ids fit, and keep a promised bound beyond that."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from model_export.statistics.table_statistics import IdCounts


def zipf_ids(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns ids distributed as in requests: few of them often, and many once."""
    return np.random.default_rng(seed).zipf(1.2, n) % 100_000


def test_counts_are_exact_while_they_fit() -> None:
    counts = IdCounts(3).with_ids(np.array([5, 9, 5])).with_ids(np.array([9, 5, 2]))
    assert counts.top(5) == [(5, 3), (9, 2), (2, 1)]
    assert counts.undercount == 0


def test_equal_counts_come_by_id() -> None:
    assert IdCounts(4).with_ids(np.array([8, 3, 3, 8, 1])).top(2) == [(3, 2), (8, 2)]


def test_no_ids_leave_the_counts() -> None:
    counts = IdCounts(2).with_ids(np.array([4])).with_ids(np.zeros(0, np.int32))
    assert counts.top(2) == [(4, 1)]


def test_what_does_not_fit_costs_every_count_the_same() -> None:
    # Ids and their counts: 7 five times, 8 three times, 9 twice, 1 once. With room for two ids, the third largest
    # count, 2, is subtracted from all.
    counts = IdCounts(2).with_ids(np.array([7] * 5 + [8] * 3 + [9] * 2 + [1]))
    assert (counts.top(2), counts.undercount) == ([(7, 3), (8, 1)], 2)


@pytest.mark.parametrize("in_parts", [False, True], ids=["steps", "merged parts"])
def test_the_bound_holds_however_the_ids_came(in_parts: bool) -> None:
    ids, capacity = zipf_ids(50_000), 200
    true = collections.Counter(ids.tolist())
    batches = np.split(ids, 50)
    counts = IdCounts(capacity)
    if in_parts:
        for part in (batches[:20], batches[20:]):
            some = IdCounts(capacity)
            for batch in part:
                some = some.with_ids(batch)
            counts = counts.merged(some)
    else:
        for batch in batches:
            counts = counts.with_ids(batch)
    assert len(counts.ids) <= capacity
    assert 0 < counts.undercount <= len(ids) / (capacity + 1)
    for number, count in true.items():
        found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)).get(number, 0)
        assert count - counts.undercount <= found <= count
    assert [number for number, _ in counts.top(5)] == [number for number, _ in true.most_common(5)]
