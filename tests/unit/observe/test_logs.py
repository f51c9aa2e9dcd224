"""The log, and the logs and files of requests."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.artifact.protos import message_class
from service.artifact.tf_record import MAX_WARMUP_RECORDS, read_records
from service.control import request_context
from service.observe import request_logs
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
from service.observe.request_logs import ModelLog, RecordFiles, RequestLogs
from service.versions.model_config import ModelConfig, RequestLogConfig
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S
from tests.toy_model import masked_crc32c


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


def test_text_shows_no_name_as_a_line_or_an_escape_sequence(log: Log) -> None:
    log.configure("info", "text")
    logger, name = logging.getLogger("x"), "a\n12:00:00 info    \x1b[2J\x9b\x7f\r\tä"
    shown = r"a\n12:00:00 info    \x1b[2J\x9b\x7f\r\tä"
    logger.info("one", extra={"model": name})
    logger.info("two", extra={"told": name})
    logger.info("%s", name)
    one, two, *message = log.read().splitlines()
    assert (one[8:], two[8:]) == (f" info    one model={shown}", f" {shown}")
    # Native libraries have messages of several lines.
    assert " ".join(message)[8:] == f" info    {shown}".replace(r"\n", " ")


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


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_of_megabytes_is_cut(log: Log, log_format: str) -> None:
    log.configure("info", log_format)
    long = "x" * (2 * BUFFER_BYTES)
    try:
        raise ValueError(long)
    except ValueError:
        logging.getLogger("t").exception("%s", long, extra={"reason": long, "names": [long] * 3, "attempt": 7})
    line = log.read()
    assert line.count("TRUNCATED") == 4
    if log_format == "json":
        assert json.loads(line)["attempt"] == 7


def test_a_line_that_the_buffer_can_not_hold_costs_no_other_line() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, lambda dropped: b"%d lines\n" % dropped)
    writer.write(bytes(BUFFER_BYTES + 1))
    assert writer.flush(PATIENCE_S)
    writer.write(b"next\n")
    assert writer.stop(PATIENCE_S)
    assert os.read(reading, 100) == b"1 lines\nnext\n"
    os.close(reading)
    os.close(writing)


def test_lines_after_a_full_disk_begin_anew_and_say_how_many_are_lost(tmp_path: Path) -> None:
    path, old = tmp_path / "log", resource.getrlimit(resource.RLIMIT_FSIZE)
    lines = [b"%d %s\n" % (number, b"x" * 25) for number in range(10)]
    with path.open("wb", buffering=0) as file:
        writer = LogWriter(file.fileno(), lambda dropped: b"%d dropped\n" % dropped)
        try:
            # As on a full disk, a part of a line is written, and then the write fails.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
            for line in lines:
                writer.write(line)
            assert writer.flush(60)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        writer.write(b"again\n")
        assert writer.stop(60)
    assert path.read_bytes() == b"".join(lines)[:100] + b"\n7 dropped\nagain\n"
    assert writer.dropped == 7


def logs(**more: Any) -> RequestLogs:
    given: dict[str, Any] = {"tags": ["serve"], "max_bytes": 1 << 24}
    return RequestLogs(**(given | more), now=lambda: 1_700_000_000.7)


def model(folder: Path, rate: float = 1.0, name: str = "m") -> ModelConfig:
    return ModelConfig(name, "/m", request_log=RequestLogConfig(str(folder / name), rate))


def messages(folder: Path) -> list[Any]:
    """Returns the PredictionLogs of all closed files."""
    found = []
    for path in sorted(folder.glob("*.tfrecord")):
        with path.open("rb") as file:
            found += [
                message_class("tensorflow.serving.PredictionLog").FromString(data)
                for data in read_records(file, masked_crc32c)
            ]
    return found


def test_a_record_of_the_core_says_whose_it_is_and_when_it_was_answered(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    answered = message_class("tensorflow.serving.PredictionLog")()
    answered.predict_log.request.output_filter.append("y")
    own.recorders["m"].answered(7, "sig", 1_600_000_000, answered.SerializeToString())
    own.stop()
    assert own.recorders == {}
    (log,) = messages(tmp_path)
    spec = log.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 7, "sig")
    assert log.log_metadata.sampling_config.sampling_rate == 1
    assert list(log.log_metadata.saved_model_tags) == ["serve"]
    assert log.log_metadata.timestamp_secs == 1_600_000_000
    assert log.predict_log == answered.predict_log


def test_a_log_goes_on_where_its_config_stays_and_ends_where_it_goes(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    first = own.recorders["m"]
    own.configure([model(tmp_path), model(tmp_path, name="n")])
    assert own.recorders["m"] is first
    own.configure([model(tmp_path, 0.25), ModelConfig("n", "/n")])
    assert own.recorders["m"] is not first and list(own.recorders) == ["m"]
    assert own.recorders["m"].rate == 0.25
    # No request of model m is sampled at rate 0.0, so m needs no recorder.
    own.configure([model(tmp_path, 0.0)])
    assert own.recorders == {}
    own.stop()


def test_what_does_not_fit_in_the_queue_is_dropped_and_counted(tmp_path: Path) -> None:
    gate, begun = threading.Event(), threading.Event()

    class Slow(RecordFiles):
        def append(self, records: Any) -> None:
            begun.set()
            assert gate.wait(60)
            super().append(records)

    files = Slow(str(tmp_path / "m"), max_bytes=1 << 24, now=lambda: 0.0)
    config = RequestLogConfig(str(tmp_path / "m"), 1.0)
    log = ModelLog("m", config, files, tags=())
    for _ in range(request_logs.MAX_QUEUED + 5):
        log.answered(1, "sig", 0, b"")
    assert begun.wait(60)
    assert log.counts() == (0, 5, False)
    gate.set()
    log.stop()
    log.wait(60)
    assert log.counts() == (request_logs.MAX_QUEUED, 5, False)


def test_a_record_that_is_too_large_is_dropped(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    own.recorders["m"].answered(1, "sig", 0, bytes(request_logs.MAX_QUEUED_BYTES + 1))
    own.stop()
    assert messages(tmp_path) == []
    found = read_exposition("".join(f"{line}\n" for line in own.metric_lines()))
    assert found["embedding_server_request_log_dropped_total"].value(model="m") == 1
    assert found["embedding_server_request_log_records_total"].value(model="m") == 0
    assert found["embedding_server_request_log_disabled"].value(model="m") == 0


def test_without_a_log_there_are_no_numbers() -> None:
    own = logs()
    own.configure([ModelConfig("m", "/m")])
    found = read_exposition("".join(f"{line}\n" for line in own.metric_lines()))
    assert len(found) == 3
    assert not any(family.samples for family in found.values())


def files_in(folder: Path) -> dict[str, list[bytes]]:
    """Returns the records in each file, by the file's name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = list(read_records(file, masked_crc32c))
    return found


def new(folder: Path, *, max_bytes: int = 1 << 24) -> RecordFiles:
    return RecordFiles(str(folder / "m"), max_bytes=max_bytes, now=lambda: 1_700_000_000.0)


def name(number: int, suffix: str = ".tfrecord") -> str:
    return f"m-20231114T221320-{os.getpid()}-{number:04d}{suffix}"


def test_a_file_is_a_part_until_it_is_closed(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"one", b"two"])
    assert files_in(tmp_path) == {name(1, ".tfrecord.part"): [b"one", b"two"]}
    files.close()
    assert files_in(tmp_path) == {name(1): [b"one", b"two"]}
    files.close()
    files.append([b"three"])
    files.close()
    assert list(files_in(tmp_path)) == [name(1), name(2)]


def test_no_file_is_larger_than_it_may_be_and_the_oldest_go(tmp_path: Path) -> None:
    # With its header and checksums, a record of 84 bytes takes 100 bytes, so a file of 200 bytes, a sixteenth of 3200,
    # has two.
    files = new(tmp_path, max_bytes=3200)
    files.append([bytes([n]) * 84 for n in range(37)])
    files.close()
    found = files_in(tmp_path)
    assert list(found) == [name(number) for number in range(4, 20)]
    assert [record[0] for records in found.values() for record in records] == [*range(6, 37)]


def test_no_file_holds_more_records_than_a_warm_up_takes(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"x"] * (MAX_WARMUP_RECORDS + 1))
    files.close()
    assert [len(records) for records in files_in(tmp_path).values()] == [MAX_WARMUP_RECORDS, 1]


def test_others_files_are_left_alone(tmp_path: Path) -> None:
    # Logs have the prefixes n, m-b and m-m, too; [m] would match m as a pattern.
    others = ["n-1.tfrecord", "m-notes.txt", f"m-b-{name(1)[2:]}", f"m-{name(1)}", "[m]-1.tfrecord"]
    for other in others:
        (tmp_path / other).write_bytes(b"")
    for prefix in ("m", "[mn]", "*"):
        files = RecordFiles(str(tmp_path / prefix), max_bytes=1, now=lambda: 1_700_000_000.0)
        files.append([b"a", b"b", b"c"])
        files.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, *(f"{prefix}{name(3)[1:]}" for prefix in ("m", "[mn]", "*"))}


def test_files_of_killed_processes_count_and_go_and_files_in_use_stay(tmp_path: Path) -> None:
    old = [tmp_path / f"m-20231114T22132{second}-9-0001.tfrecord.part" for second in range(4)]
    for path in old:
        path.write_bytes(bytes(400))
    files = RecordFiles(str(tmp_path / "m"), max_bytes=1000, now=lambda: 1_700_000_005.0)
    with old[1].open("rb") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_EX)
        files.append([b"a"])
        own = f"m-20231114T221325-{os.getpid()}-0001.tfrecord"
        assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in old[1:]), f"{own}.part"}
    files.close()
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in old[2:]), own}


def test_of_a_record_that_does_not_fit_on_the_disk_nothing_stays(tmp_path: Path) -> None:
    files = new(tmp_path)
    files.append([b"whole"])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # RLIMIT_FSIZE acts like a full disk: a part of the record is written, then the write fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
        with pytest.raises(OSError):
            files.append([b"x" * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    files.append([b"next"])
    files.close()
    assert files_in(tmp_path) == {name(1): [b"whole", b"next"]}
