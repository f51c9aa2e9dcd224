"""Log lines are JSON that machines can read."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from service.engine import request_context
from service.observe.logs import LINES_AT_ONCE, LINES_PER_S, LineLimit, configure_logging, name_requests_in_log


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Returns a function that reads what was written to standard error; restores the root logger afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # An earlier test in this thread may have left the context of its request.
    request_context.enter(b"")
    yield lambda: capsys.readouterr().err
    request_context.enter(b"")
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


def test_a_line_names_the_request_that_is_worked_on(log: Callable[[], str]) -> None:
    configure_logging("info", "json")
    name_requests_in_log(request_context.request_id.get)
    request_context.enter(b"abc-1")
    logging.getLogger("x").info("one")
    logging.getLogger("x").info("two", extra={"request_id": "of its own"})
    request_context.enter(b"")
    logging.getLogger("x").info("three")
    assert [json.loads(line).get("request_id") for line in log().splitlines()] == ["abc-1", "of its own", None]


def test_a_flood_of_lines_is_cut_and_the_next_line_says_how_many_are_missing() -> None:
    now_s = 0.0
    limit = LineLimit(lambda: now_s)

    def passed(count: int, name: str = "x", level: int = logging.INFO) -> list[logging.LogRecord]:
        records = [logging.makeLogRecord({"name": name, "levelno": level}) for _ in range(count)]
        return [record for record in records if limit.filter(record)]

    assert len(passed(LINES_AT_ONCE + 30)) == LINES_AT_ONCE
    # The limit on log lines counts each logger and each level apart.
    assert len(passed(1, "y")) == len(passed(1, level=logging.ERROR)) == 1
    now_s = 2.0
    first, *others = passed(2 * LINES_PER_S + 5)
    assert vars(first)["left_out"] == 30
    assert len(others) == 2 * LINES_PER_S - 1 and not any(hasattr(record, "left_out") for record in others)
    now_s = 1e9
    assert vars(passed(LINES_AT_ONCE + 1)[0])["left_out"] == 5


def test_the_log_limits_its_lines(log: Callable[[], str]) -> None:
    configure_logging("info", "json")
    for _ in range(LINES_AT_ONCE + 100):
        logging.getLogger("x").info("again")
    assert LINES_AT_ONCE <= len(log().splitlines()) < LINES_AT_ONCE + 100
