"""The history of traffic, of versions and of recent requests."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest

from service.control import request_context
from service.control.request_context import Finished, Subject
from service.errors import IdOutOfRange, Overloaded
from service.observe import metric_text
from service.observe.history import (
    FAILURES_S,
    MAX_CHANGES,
    MAX_MODELS,
    MAX_NAMES,
    MAX_POINTS,
    OTHERS,
    RecentFailures,
    RecentRequests,
    TrafficHistory,
    VersionHistory,
)
from service.observe.request_metrics import CoreCounts, RequestCounter, Requests, Successes
from service.types import State, VersionStatus
from tests.conftest import Clock


class Server:
    """Counts requests as a server does, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.ahead_s = 0.0
        self.counter = RequestCounter()
        self.history = TrafficHistory(self.counter, lambda: self.now_s + self.ahead_s, lambda: self.now_s)

    def answer(self, model: str, *seconds: float, failures: int = 0, version: int = 1) -> None:
        """Counts requests of these durations, and failures."""
        subject = Subject("http", "lookup", model, version, "lookup")
        for one in seconds:
            self.counter.finished(Finished(subject, None, one, run_seconds=0.0, rows=1))
        for _ in range(failures):
            self.counter.finished(Finished(subject._replace(version=None), IdOutOfRange("id"), 0.1, 0.0, 0))

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


def test_a_version_that_is_unloaded_makes_no_burst() -> None:
    server = Server()
    server.answer("m", *[0.001] * 50, failures=500)
    server.wait(5)
    server.answer("m", *[0.001] * 10, version=2)
    server.counter.retire("m", 1)
    server.wait(5)
    found = server.history.read()["models"]["m"]
    assert (found["successes_per_s"], found["failures_per_s"]) == ([10.0, 2.0, 0.0], [100.0, 0.0, 0.0])


def test_a_model_that_was_removed_begins_again() -> None:
    server = Server()
    server.answer("m", *[0.001] * 50)
    server.wait(5)
    server.counter.forget("m")
    server.wait(5)
    server.answer("m", *[0.001] * 10)
    server.counter.forget("m")
    server.answer("m", *[0.001] * 5)
    server.wait(5)
    assert server.history.read()["models"]["m"]["successes_per_s"] == [10.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_changes_no_rate(step_s: float) -> None:
    server = Server()
    for _ in range(3):
        server.answer("m", *[0.001] * 10)
        server.wait(5)
        server.ahead_s = step_s
    found = server.history.read()
    assert found["models"]["m"]["successes_per_s"] == [2.0, 2.0, 2.0, 0.0]
    # Times are told by the clock of now.
    assert [found["start_s"], *found["at_s"]] == [step_s + one for one in (1000, 1005, 1010, 1015, 1015)]


def test_spans_have_each_kind_of_the_last_minutes_also_after_days() -> None:
    server = Server()
    server.answer("m", 0.04, failures=1)
    for _ in range(5 * MAX_POINTS):
        server.wait(5)
    server.answer("m", *[0.0004] * 99, failures=2)
    predict = Successes("predict", False)
    predict.times.add(0.04)
    core = Requests({Subject("grpc", "Predict", "m", 1, "serving_default"): predict})
    server.counter.core = FakeCore(core)
    server.wait(5)
    for _ in range(11):
        server.wait(5)
    server.answer("m", failures=3)
    minute, minutes, ever = server.history.read()["spans"]
    assert [span["seconds"] for span in (minute, minutes, ever)] == [60, 300, 5 * (5 * MAX_POINTS + 12)]
    found = [
        {row["kind"]: (row["successes"], row["failures"]) for row in span["rows"]} for span in (minute, minutes, ever)
    ]
    recent = {"": (0, 5), "lookup": (99, 0), "predict": (1, 0)}
    assert found == [recent, recent, recent | {"": (0, 6), "lookup": (100, 0)}]
    failures, lookups, predictions = minutes["rows"]
    assert lookups["p99_ms"] < 1 < 25 < predictions["p99_ms"] < 50 and failures["p99_ms"] is None
    server.now_s += 5
    assert [row["kind"] for row in server.history.read()["spans"][0]["rows"]] == [""]


def test_searches_are_no_lookups_and_control_requests_fail_too() -> None:
    server = Server()
    search, status = Subject("http", "neighbors", "m", 1, "neighbors"), Subject("http", "status", "m", None, "")
    server.counter.finished(Finished(search, None, 0.03, run_seconds=0.02, rows=1))
    for error in (None, IdOutOfRange("id")):
        server.counter.finished(Finished(status, error, 0.1, 0.0, 0, is_control=True))
    found = server.history.read()["spans"][0]["rows"]
    assert [(row["kind"], row["successes"], row["failures"]) for row in found] == [("", 0, 1), ("search", 1, 0)]


class FakeCore:
    """A native core with fixed counts."""

    def __init__(self, requests: Requests, refused: dict[tuple[str, str], int] | None = None) -> None:
        self.requests, self.refused = requests, refused or {}

    def collect(self) -> CoreCounts:
        return CoreCounts(self.requests, self.refused)

    def retire(self, model: str, version: int) -> Requests:
        return Requests()

    def forget(self, model: str) -> None: ...


def test_requests_refused_for_load_are_failures() -> None:
    server = Server()
    server.answer("m", 0.001, failures=1)
    server.counter.core = FakeCore(Requests(), {("m", "queue"): 3, ("", "streams"): 1})
    recent = RecentFailures(server.counter.failures)
    found = {(row["model"], row["kind"]): row["failures"] for row in server.history.read()["spans"][-1]["rows"]}
    assert found == {("", ""): 1, ("m", ""): 4, ("m", "lookup"): 0}
    told = {(one["model"], one["code"]): one["requests"] for one in recent.read()["counts"]}
    assert told == {("m", "refused: queue"): 3, ("m", "INVALID_ARGUMENT"): 1, ("", "refused: streams"): 1}


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
    # The models m0 to m30 are the least busy ones.
    assert len(models) == MAX_MODELS + 1 and models[OTHERS]["successes_per_s"][-2] == sum(range(1, 32))


def test_a_model_that_becomes_one_of_the_busiest_makes_no_burst() -> None:
    server = Server()
    for number in range(MAX_MODELS + 10):
        server.answer(f"m{number}", *[0.001] * (number + 1))
    server.wait(1)
    server.answer("m0", *[0.001] * 1000)
    server.wait(1)
    models = server.history.read()["models"]
    # In the first second m0 and nine more are the least busy ones.
    assert {name: models[name]["successes_per_s"] for name in ("m0", "m10", OTHERS)} == {
        "m0": [0.0, 1000.0, 0.0],
        "m10": [11.0, 0.0, 0.0],
        OTHERS: [55.0, 0.0, 0.0],
    }


def test_the_example_of_quantiles_holds() -> None:
    result = doctest.testmod(metric_text)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 0.5), (1.0, 2.0)])
def test_edges_of_quantiles(share: float, wanted: float) -> None:
    found = metric_text.quantile_s([0, 2, 3], [0.5, 2.0], share)
    assert found == wanted


def test_changes_are_kept_by_model_with_their_times() -> None:
    times = iter([10.0004, 11.0, 12.0])
    history = VersionHistory(lambda: next(times))
    history.note("m", VersionStatus(1, State.LOADING))
    history.note("other", VersionStatus(7, State.START))
    history.note("m", VersionStatus(1, State.END, "DATA_LOSS", "broken"))
    assert history.read("m") == [
        {"at_s": 10.0, "version": 1, "state": "LOADING", "message": ""},
        {"at_s": 12.0, "version": 1, "state": "END", "message": "broken"},
    ]
    assert history.read("absent") == []


def test_changes_and_models_are_limited() -> None:
    history = VersionHistory()
    for version in range(MAX_CHANGES + 5):
        history.note("m", VersionStatus(version, State.START))
    assert [change["version"] for change in history.read("m")] == list(range(5, MAX_CHANGES + 5))
    for number in range(MAX_NAMES):
        history.note(f"model-{number}", VersionStatus(1, State.START))
    assert history.read("m") == [] and history.read("model-0")


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


def test_failures_of_the_last_minutes_are_counted_by_model_and_code(clock: Clock) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    recent = RecentFailures(counts.copy, clock)

    def fail(model: str, code: str, count: int) -> None:
        counts[model, code] += count

    def found() -> list[tuple[str, str, int]]:
        document = recent.read()
        assert document["seconds"] == FAILURES_S
        return [(one["model"], one["code"], one["requests"]) for one in document["counts"]]

    assert found() == []
    clock.now_s += 5
    fail("m", "NOT_FOUND", 3)
    fail("m", "NOT_FOUND", 4)
    fail("n", "INTERNAL", 9)
    assert found() == [("n", "INTERNAL", 9), ("m", "NOT_FOUND", 7)]
    clock.now_s += FAILURES_S - 1
    fail("m", "NOT_FOUND", 1)
    assert found() == [("n", "INTERNAL", 9), ("m", "NOT_FOUND", 8)]
    clock.now_s += 1
    assert found() == [("m", "NOT_FOUND", 1)]
    # The counts of a model that is removed go, and are no negative numbers.
    counts.clear()
    assert found() == []
