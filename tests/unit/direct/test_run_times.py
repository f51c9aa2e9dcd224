"""What a run is expected to take is the least that recent ones of its size took."""

from __future__ import annotations

import math

import pytest
from service.direct.run_times import RunTimes


def test_sizes_are_known_once_they_ran() -> None:
    times = RunTimes()
    assert times.expected_s(5) == math.inf
    times.learn(5, 0.25)
    # 4 to 7 rows.
    assert [times.expected_s(rows) for rows in (3, 4, 7, 8)] == [math.inf, 0.25, 0.25, math.inf]


def test_a_shorter_run_counts_at_once_and_a_longer_one_little() -> None:
    times = RunTimes()
    for seconds in (0.5, 0.25):
        times.learn(1, seconds)
    assert times.expected_s(1) == 0.25
    times.learn(1, 64.25)
    assert times.expected_s(1) == 1.25
    for _ in range(1000):
        times.learn(1, 3.0)
    assert times.expected_s(1) == pytest.approx(3.0, abs=1e-3)
