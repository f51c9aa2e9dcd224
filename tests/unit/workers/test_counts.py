"""Connection counts in shared memory, seen by another process through its own map."""

from __future__ import annotations

from service.workers.counts import ConnectionCounts


def test_the_least_of_the_others_leaves_out_oneself_and_those_that_are_away() -> None:
    counts = ConnectionCounts.create(3)
    assert counts.least_of_others(0, "http") is None
    counts.set(0, "http", 1)
    counts.set(1, "http", 5)
    counts.set(2, "http", 7)
    counts.set(2, "grpc", 0)
    assert counts.least_of_others(0, "http") == 5
    assert counts.least_of_others(1, "http") == 1
    counts.away(1, "http")
    assert counts.least_of_others(0, "http") == 7
    counts.gone(2)
    assert counts.least_of_others(0, "http") is None
    assert counts.least_of_others(0, "grpc") is None


def test_another_map_of_the_same_memory_sees_it() -> None:
    ours = ConnectionCounts.create(2)
    theirs = ConnectionCounts(ours.descriptor, 2)
    theirs.set(1, "grpc", 4)
    assert ours.least_of_others(0, "grpc") == 4
