"""The metrics count each request once, from any number of threads, and keep only the sums of versions that are gone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.engine.request_context import Subject
from service.errors import IdOutOfRange, Overloaded
from tests.unit.observe.reports import finish, new_metrics

LOOKUP = Subject("http", "lookup", "m", 1, "lookup")


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Makes threads interrupt each other a hundred times as often as by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_that_count_at_the_same_time_lose_nothing(hasty_switches: None) -> None:
    metrics = new_metrics()
    is_over = threading.Event()
    seen: list[int] = []

    def scrape() -> None:
        while not is_over.is_set():
            seen.append(sum(cell.count for cell in metrics.requests.read()[0].successes.values()))

    def work() -> None:
        for _ in range(2000):
            finish(metrics, seconds=0.5, rows=2)
            finish(metrics, error=IdOutOfRange("x"))

    with ThreadPoolExecutor(5) as threads:
        scraper = threads.submit(scrape)
        workers = [threads.submit(work) for _ in range(4)]
        for worker in workers:
            worker.result()
        is_over.set()
        scraper.result()
    now, _ = metrics.requests.read()
    cell = now.successes[LOOKUP]
    assert (cell.count, cell.rows, cell.times.seconds) == (8000, 16000, 4000.0)
    assert now.failures == {(LOOKUP, "INVALID_ARGUMENT"): 8000}
    assert seen == sorted(seen), "a counter went back"


def test_a_version_that_is_gone_leaves_its_sums() -> None:
    metrics = new_metrics()
    for version in (1, 2):
        finish(metrics, version)
        finish(metrics, version, Overloaded("full"))
    finish(metrics, 1, model="other")
    metrics.requests.retire("m", 1)
    finish(metrics, 2)
    now, ever = metrics.requests.read()
    assert {(subject.model, subject.version) for subject in now.successes} == {("m", 2), ("other", 1)}
    sums = LOOKUP._replace(version=None)
    assert (ever.successes[sums].count, ever.successes[sums].rows) == (3, 9)
    assert ever.failures == {(sums._replace(signature=""), "UNAVAILABLE"): 2}
    metrics.requests.retire("m", 2)
    assert metrics.requests.read()[1].successes[sums].count == 3


def test_a_version_that_comes_back_counts_from_zero() -> None:
    metrics = new_metrics()
    finish(metrics)
    metrics.requests.retire("m", 1)
    finish(metrics)
    now, ever = metrics.requests.read()
    assert now.successes[LOOKUP].count == 1
    assert ever.successes[LOOKUP._replace(version=None)].count == 2


def test_reading_changes_nothing() -> None:
    metrics = new_metrics()
    finish(metrics)
    for _ in range(3):
        now, ever = metrics.requests.read()
    assert now.successes[LOOKUP].count == ever.successes[LOOKUP._replace(version=None)].count == 1


def test_metrics_of_two_servers_do_not_mix() -> None:
    first, second = new_metrics(), new_metrics()
    finish(first)
    assert second.requests.read()[0].successes == {}
