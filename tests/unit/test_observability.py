"""Metrics that count what happened and forget what is gone; log lines that machines can read."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.core.errors import IdOutOfRange, Overloaded
from service.core.types import State, VersionStatus
from service.observability import Metrics, configure_logging

LABELS = ("api", "model", "version", "signature", "code", "le")


def finish(metrics: Metrics, version: int | None = 1, error: BaseException | None = None, **more: object) -> None:
    """Reports one request."""
    request = {"api": "http", "model": "m", "signature": "lookup", "seconds": 0.001, "rows": 3} | more
    metrics.finished(version=version, error=error, **request)  # type: ignore[arg-type]


def samples(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Returns our samples: name to labels, as "a=1,b=2", to value."""
    result: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            if sample.name.startswith("embedding_server_"):
                labels = ",".join(f"{name}={sample.labels[name]}" for name in LABELS if name in sample.labels)
                result.setdefault(sample.name.removeprefix("embedding_server_"), {})[labels] = sample.value
    return result


def test_counts_requests_rows_and_seconds_of_success() -> None:
    metrics = Metrics()
    finish(metrics)
    finish(metrics, rows=4, seconds=0.003)
    finish(metrics, api="grpc")
    found = samples(metrics)
    labels = "api=http,model=m,version=1,signature=lookup"
    assert found["requests_total"] == {
        f"{labels},code=OK": 2,
        "api=grpc,model=m,version=1,signature=lookup,code=OK": 1,
    }
    assert found["rows_total"][labels] == 7
    assert found["request_seconds_count"][labels] == 2
    assert found["request_seconds_sum"][labels] == pytest.approx(0.004)
    assert found["request_seconds_bucket"][f"{labels},le=0.001"] == 1
    assert found["request_seconds_bucket"][f"{labels},le=0.005"] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IdOutOfRange("id"), "INVALID_ARGUMENT"),
        (Overloaded("full"), "UNAVAILABLE"),
        (RuntimeError("a surprise"), "INTERNAL"),
        (KeyboardInterrupt(), "CANCELLED"),
        (GeneratorExit(), "CANCELLED"),
    ],
)
def test_errors_count_by_code_and_in_nothing_else(error: BaseException, code: str) -> None:
    metrics = Metrics()
    finish(metrics, error=error)
    assert samples(metrics) == {
        "requests_total": {f"api=http,model=m,version=1,signature=lookup,code={code}": 1},
        "requests_created": samples(metrics)["requests_created"],
    }


def test_a_request_that_was_never_bound_has_no_version() -> None:
    metrics = Metrics()
    finish(metrics, version=None, error=IdOutOfRange("x"), model="", signature="")
    assert list(samples(metrics)["requests_total"]) == ["api=http,model=,version=,signature=,code=INVALID_ARGUMENT"]


def test_shows_the_state_of_every_version() -> None:
    metrics = Metrics()
    metrics.version_changed("m", VersionStatus(1, State.AVAILABLE))
    metrics.version_changed("m", VersionStatus(2, State.LOADING))
    assert samples(metrics)["version_state"] == {"model=m,version=1": 30, "model=m,version=2": 20}


def test_a_version_that_was_unloaded_takes_its_series_along() -> None:
    metrics = Metrics()
    for version in (1, 2):
        metrics.version_changed("m", VersionStatus(version, State.AVAILABLE))
        finish(metrics, version)
        finish(metrics, version, IdOutOfRange("x"))
    finish(metrics, 1, model="other")
    for state in (State.UNLOADING, State.END):
        metrics.version_changed("m", VersionStatus(1, state))
    text = metrics.render()[0].decode()
    assert 'model="m",signature="lookup",version="1"' not in text
    found = samples(metrics)
    assert not any("model=m,version=1" in labels for series in found.values() for labels in series)
    assert any("model=m,version=2" in labels for labels in found["requests_total"])
    assert any("model=other,version=1" in labels for labels in found["requests_total"])
    assert found["version_state"] == {"model=m,version=2": 30}


def test_a_version_that_comes_back_counts_from_zero() -> None:
    metrics = Metrics()
    metrics.version_changed("m", VersionStatus(1, State.AVAILABLE))
    finish(metrics)
    metrics.version_changed("m", VersionStatus(1, State.END))
    finish(metrics)
    assert list(samples(metrics)["requests_total"].values()) == [1]


def test_a_failed_load_stays_visible() -> None:
    metrics = Metrics()
    metrics.version_changed("m", VersionStatus(2, State.END, "FAILED_PRECONDITION", "broken"))
    assert samples(metrics)["version_state"] == {"model=m,version=2": 50}
    metrics.version_changed("m", VersionStatus(2, State.UNKNOWN))
    assert not samples(metrics).get("version_state"), "until status tells of it no more"


def test_the_exposition_holds_the_process_and_its_content_type() -> None:
    body, content_type = Metrics().render()
    assert content_type.startswith("text/plain; version=")
    assert b"process_resident_memory_bytes" in body


def test_metrics_of_two_servers_do_not_mix() -> None:
    first, second = Metrics(), Metrics()
    finish(first)
    assert "requests_total" not in samples(second)


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Reads what went to standard error; the root logger is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_holds_the_message_and_every_extra(log: Callable[[], str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("service.x").info("loaded\nit", extra={"model": "m", "path": sys, "seconds": 0.5, "gone": None})
    (line,) = log().splitlines()
    data = json.loads(line)
    assert data.pop("time").endswith("+00:00")
    assert data == {
        "level": "info",
        "logger": "service.x",
        "message": "loaded\nit",
        "model": "m",
        "path": str(sys),
        "seconds": 0.5,
    }


def test_a_json_line_holds_the_traceback(log: Callable[[], str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("x").exception("failed: %s", "reason")
    data = json.loads(log())
    assert (data["level"], data["message"]) == ("error", "failed: reason")
    assert "ValueError: inner" in data["traceback"]


def test_a_text_line_is_for_people(log: Callable[[], str]) -> None:
    configure_logging("warning", "text")
    logging.getLogger("x").info("not this")
    logging.getLogger("x").warning("careful", extra={"model": "m"})
    assert log()[8:] == " warning careful model=m\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_auto_is_text_on_a_terminal_only(
    log: Callable[[], str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    configure_logging("info", "auto")
    logging.getLogger("x").info("hello")
    assert log().startswith("{") != is_terminal
