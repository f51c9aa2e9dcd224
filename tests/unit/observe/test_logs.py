"""Log lines are JSON that machines can read."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from service.engine import request_context
from service.observe.logs import (
    BUFFER_BYTES,
    LINES_AT_ONCE,
    LINES_PER_S,
    LineLimit,
    LogWriter,
    configure_logging,
    dropped_line_metrics,
    name_requests_in_log,
)
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S


class Log:
    """A log on a pipe."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        self.writer = LogWriter(self._writing)

    def configure(self, level: str, log_format: str) -> None:
        """Makes the root logger write to the pipe."""
        configure_logging(level, log_format, self.writer)

    def read(self) -> str:
        """Waits until all lines are written, and returns them."""
        assert self.writer.flush(PATIENCE_S)
        return os.read(self.reading, 1 << 16).decode()

    def close(self) -> None:
        """Ends the writer."""
        assert self.writer.stop(PATIENCE_S)
        os.close(self.reading)
        os.close(self._writing)


@pytest.fixture
def log() -> Iterator[Log]:
    """Returns a log on a pipe; restores the root logger afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # An earlier test in this thread may have left the context of its request.
    request_context.enter(b"")
    log = Log()
    yield log
    request_context.enter(b"")
    root.handlers[:] = handlers
    root.setLevel(level)
    log.close()


def test_a_json_line_holds_the_message_and_every_extra(log: Log) -> None:
    log.configure("info", "json")
    logging.getLogger("service.x").info("loaded\nit", extra={"model": "m", "path": sys, "seconds": 0.5, "gone": None})
    (line,) = log.read().splitlines()
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


def test_a_json_line_holds_the_traceback(log: Log) -> None:
    log.configure("info", "json")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("x").exception("failed: %s", "reason")
    data = json.loads(log.read())
    assert (data["level"], data["message"]) == ("error", "failed: reason")
    assert "ValueError: inner" in data["traceback"]


def test_a_text_line_is_for_people(log: Log) -> None:
    log.configure("warning", "text")
    logging.getLogger("x").info("not this")
    logging.getLogger("x").warning("careful", extra={"model": "m"})
    assert log.read()[8:] == " warning careful model=m\n"


@pytest.mark.parametrize("level", ["info", "debug"])
def test_text_leaves_out_what_only_machines_read(log: Log, level: str) -> None:
    inside, outside = logging.getLogger("service.tables.x"), logging.getLogger("service.process.x")

    def write() -> list[str]:
        inside.info("verified tables", extra={"bytes": 7})
        inside.info("loaded", extra={"model": "m", "told": "m is ready"})
        outside.info("version state", extra={"model": "m", "told": ""})
        outside.info("draining", extra={"told": None})
        inside.warning("slow disk")
        return log.read().splitlines()

    log.configure(level, "json")
    records = [json.loads(line) for line in write()]
    assert [record["message"] for record in records] == [
        "verified tables",
        "loaded",
        "version state",
        "draining",
        "slow disk",
    ]
    assert all("told" not in record for record in records)
    log.configure(level, "text")
    lines = [line[9:] for line in write()]
    hidden = ["info    verified tables bytes=7", "info    version state model=m"] if level == "debug" else []
    shown = ["m is ready", "info    draining", "warning slow disk"]
    assert sorted(lines) == sorted(shown + hidden)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_auto_is_text_on_a_terminal_only(log: Log, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: is_terminal)
    log.configure("info", "auto")
    logging.getLogger("x").info("hello")
    assert log.read().startswith("{") != is_terminal


def test_a_line_names_the_request_that_is_worked_on(log: Log) -> None:
    log.configure("info", "json")
    name_requests_in_log(request_context.request_id.get)
    request_context.enter(b"abc-1")
    logging.getLogger("x").info("one")
    logging.getLogger("x").info("two", extra={"request_id": "of its own"})
    request_context.enter(b"")
    logging.getLogger("x").info("three")
    assert [json.loads(line).get("request_id") for line in log.read().splitlines()] == ["abc-1", "of its own", None]


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


def test_the_log_limits_its_lines(log: Log) -> None:
    log.configure("info", "json")
    for _ in range(LINES_AT_ONCE + 100):
        logging.getLogger("x").info("again")
    # A machine that is busy for seconds gives the loop the time for some lines more.
    written = len(log.read().splitlines())
    assert LINES_AT_ONCE <= written < LINES_AT_ONCE + 100
    assert dropped("rate") == LINES_AT_ONCE + 100 - written


def dropped(reason: str) -> float:
    """Returns the metric of lines dropped for a reason."""
    found = read_exposition("".join(f"{line}\n" for line in dropped_line_metrics()))
    return found["embedding_server_log_lines_dropped_total"].value(reason=reason)


def test_a_log_that_nobody_reads_drops_lines_and_says_so_once_it_is_read(log: Log) -> None:
    log.configure("info", "json")
    logger = logging.getLogger("x")
    # More than the buffer and the pipe (64 KB) hold: none of these calls waits.
    size, count = 10_000, 2 * BUFFER_BYTES // 10_000
    for number in range(count):
        logger.info("%d %s", number, "x" * size)
    lost = dropped("output")
    assert 0 < lost < count
    text = ""
    while "log lines dropped" not in text:
        text += os.read(log.reading, 1 << 16).decode()
    *whole, report = [json.loads(line) for line in text.splitlines()]
    assert [int(line["message"].split()[0]) for line in whole] == list(range(count - int(lost)))
    assert (report["level"], report["left_out"]) == ("warning", lost)
    logger.info("again")
    assert json.loads(log.read())["message"] == "again"
    assert dropped("output") == lost
