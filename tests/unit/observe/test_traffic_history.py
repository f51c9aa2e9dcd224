"""The history of traffic begins with the server, and stays within its bounds."""

from __future__ import annotations

import doctest

import pytest

from service.engine.request_context import Subject
from service.observe import metric_text
from service.observe.history import MAX_MODELS, MAX_POINTS, OTHERS, TrafficHistory
from service.observe.request_metrics import Requests, Successes


class Server:
    """Counts requests as a server does, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.counts = Requests()
        self.history = TrafficHistory(lambda: self.counts, lambda: self.now_s)

    def answer(self, model: str, *seconds: float, failures: int = 0) -> None:
        """Counts requests of these durations, and failures."""
        subject = Subject("http", "lookup", model, 1, "lookup")
        cell = self.counts.successes.setdefault(subject, Successes("lookup", False))
        for one in seconds:
            cell.times.add(one)
        self.counts.add_failures(subject, "NOT_FOUND", failures)

    def wait(self, seconds: float) -> None:
        """Lets time pass, and the history note it."""
        self.now_s += seconds
        self.history.add_point()


def test_rates_failures_and_percentiles_from_the_start() -> None:
    server = Server()
    server.answer("m", *[0.0004] * 90, *[0.04] * 10, failures=5)
    server.wait(5)
    server.wait(5)
    server.now_s += 2
    found = server.history.read()
    assert (found["start_s"], found["at_s"]) == (1000.0, [1005.0, 1010.0, 1012.0])
    one = found["models"]["m"]
    assert one["successes_per_s"] == [20.0, 0.0, 0.0] and one["failures_per_s"] == [1.0, 0.0, 0.0]
    assert 0.2 < one["p50_ms"][0] < 0.45 and 25 < one["p99_ms"][0] < 50 and one["p50_ms"][1:] == [None, None]


def test_counts_that_fell_begin_again() -> None:
    server = Server()
    server.answer("m", *[0.001] * 50)
    server.wait(5)
    server.counts = Requests()
    server.answer("m", *[0.001] * 10)
    server.wait(5)
    assert server.history.read()["models"]["m"]["successes_per_s"] == [10.0, 2.0, 0.0]


def test_it_stays_within_its_bounds() -> None:
    server = Server()
    for _ in range(5 * MAX_POINTS):
        server.answer("m", 0.001)
        server.wait(1)
    found = server.history.read()
    assert MAX_POINTS / 2 <= len(found["at_s"]) <= MAX_POINTS + 1
    assert found["start_s"] == 1000.0 and set(found["models"]["m"]["successes_per_s"][:-1]) == {1.0}
    for number in range(2 * MAX_MODELS):
        server.answer(f"m{number}", *[0.001] * (number + 1))
    server.wait(1)
    models = server.history.read()["models"]
    assert len(models) == MAX_MODELS + 1 and models[OTHERS]["successes_per_s"][-2] > 0


def test_the_example_of_quantiles_holds() -> None:
    result = doctest.testmod(metric_text)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 0.5), (1.0, 2.0)])
def test_edges_of_quantiles(share: float, wanted: float) -> None:
    found = metric_text.quantile_s([0, 2, 3], [0.5, 2.0], share)
    assert found == wanted
