"""Checks the records of slow and failed requests, and how often they are logged."""

from __future__ import annotations

import pytest

from service.engine import request_context
from service.engine.request_context import Finished, Subject
from service.errors import IdOutOfRange, Overloaded
from service.observe.history import RecentRequests
from service.observe.request_metrics import RequestCounter
from tests.conftest import Clock


def finish(counter: RequestCounter, seconds: float, error: BaseException | None = None) -> None:
    """Reports one request."""
    subject = Subject("http", "lookup", "m", 3, "s")
    counter.finished(Finished(subject, error, seconds, run_seconds=0.25, rows=7))


@pytest.fixture
def recent(clock: Clock) -> RecentRequests:
    """Returns a record of requests in which those of half a second or more are slow."""
    return RecentRequests(0.5, lambda: 99.0, clock)


def test_slow_ones_are_kept_by_how_slow_they_were_and_logged(
    recent: RecentRequests, caplog: pytest.LogCaptureFixture
) -> None:
    counter = RequestCounter(recent)
    request_context.enter(b"my-id")
    for seconds in (0.49, 0.5, 2.0, 1.0):
        finish(counter, seconds)
    request_context.enter(b"")
    assert [noted.seconds for noted in recent.slowest()] == [2.0, 1.0, 0.5]
    first = recent.slowest()[0]
    assert (first.request_id, first.model, first.version, first.rows, first.at_s) == ("my-id", "m", 3, 7, 99.0)
    lines = [record for record in caplog.records if record.message == "slow request"]
    assert [(line.seconds, line.request_id, line.levelname) for line in lines] == [  # type: ignore[attr-defined]
        (0.5, "my-id", "WARNING"),
        (2.0, "my-id", "WARNING"),
        (1.0, "my-id", "WARNING"),
    ]


def test_a_flood_of_slow_ones_is_a_few_lines(
    recent: RecentRequests, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    counter = RequestCounter(recent)
    for _ in range(100):
        finish(counter, 1.0)
    assert len(caplog.records) == 5
    assert len(recent.slowest()) == 50
    clock.now_s += 1
    finish(counter, 1.0)
    assert (len(caplog.records), caplog.records[-1].unsaid) == (6, 95)  # type: ignore[attr-defined]


def test_clients_errors_do_not_push_the_servers_out(recent: RecentRequests) -> None:
    counter = RequestCounter(recent)
    finish(counter, 0.1, Overloaded("full"))
    for number in range(200):
        finish(counter, 0.1, IdOutOfRange(f"id {number}"))
    finish(counter, 0.1, KeyError("bug"))
    found = recent.failures()
    assert [(noted.code, noted.message) for noted in found[:3]] == [
        ("INTERNAL", "KeyError"),
        ("UNAVAILABLE", "full"),
        ("INVALID_ARGUMENT", "id 199"),
    ]
    assert len(found) == 52


def test_failures_are_told_the_newest_first(clock: Clock) -> None:
    recent = RecentRequests(0.5, clock, clock)
    counter = RequestCounter(recent)
    for number, error in enumerate((IdOutOfRange("first"), Overloaded("second"), IdOutOfRange("third"))):
        clock.now_s = 100.0 + number
        finish(counter, 0.1, error)
    assert [noted.message for noted in recent.failures()] == ["third", "second", "first"]


def test_without_a_limit_none_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    recent = RecentRequests(float("inf"))
    finish(RequestCounter(recent), 1e9)
    assert recent.slowest() == []
    assert not caplog.records
