"""Checks the report that a soak writes of its samples."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from loadtest.soak.report import Report, Sample, Tally, Window, slope_mib_per_hour

SAMPLE = Sample(
    at_s=60,
    pss_mib=200,
    private_mib=100,
    anonymous_mib=90,
    descriptors=10,
    deleted_maps=0,
    threads=5,
    cpu_s=1,
    requests={"lookup": 3},
    failures={},
    outcomes={"lookup: OK": 3},
    p50_ms=1,
    p99_ms=2,
    max_ms=3,
    behind_ms=0,
)


def samples(*anonymous_mib: float) -> list[Sample]:
    """Returns samples, one a minute, with these amounts of anonymous memory."""
    return [dataclasses.replace(SAMPLE, at_s=60.0 * (i + 1), anonymous_mib=m) for i, m in enumerate(anonymous_mib)]


def test_the_slope_is_that_of_the_second_half() -> None:
    # Memory grows by 100 MiB a minute in the first half of the samples, and by 0.5 MiB a minute in the second.
    assert slope_mib_per_hour(samples(100, 200, 300, 300, 300.5, 301), "anonymous_mib") == pytest.approx(30)
    assert slope_mib_per_hour(samples(100, 200, 300, 400), "anonymous_mib") is None


def test_long_runs_share_rows_and_lose_no_request() -> None:
    report = Report({}, samples(*range(61)))
    rows = [line.split(" | ") for line in report.markdown().splitlines() if line.endswith(" | 3.0 | 0 |")]
    assert (len(rows), sum(int(row[8]) for row in rows)) == (13, 3 * 61)
    assert "All: 183 requests, 0 failures." in report.markdown()
    assert "| lookup | 183 | 0 | OK 183 |" in report.markdown()


def test_a_failure_and_a_fault_each_spoil_a_run() -> None:
    assert Report({}, [SAMPLE]).is_good
    assert not Report({}).is_good
    assert not Report({}, [SAMPLE], problems={"lookup: INTERNAL": (1, 0.0)}).is_good
    assert not Report({}, [SAMPLE], faults={"ValueError": 1}).is_good


def test_failures_are_counted_until_the_run_is_interrupted() -> None:
    interrupted = threading.Event()
    tally = Tally(interrupted)
    tally.done("lookup", "OK", 0.5, 0.1)
    tally.failed("lookup", "INTERNAL\n oops")
    tally.failed("lookup", "INTERNAL\n oops")
    interrupted.set()
    tally.failed("lookup", "UNAVAILABLE")
    window = tally.next_window()
    assert (window.requests, window.failures) == ({"lookup": 3}, {"lookup": 2})
    assert {why: count for why, (count, _) in tally.problems.items()} == {"lookup: INTERNAL oops": 2}
    assert tally.next_window() == Window()
