"""Rows change while a server answers: clients see whole changes, also after kills and whatever files are dropped."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_export.compaction.compact import compact
from tests.deltas import crc32c, delta_bytes, drop
from tests.exposition import Family, read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, until

MODEL = "/v1/models/default"
USERS = [0, 1, 2, 3, 4]


def change(server: ServerProcess, table: str, ids: list[int], rows: Any, **more: Any) -> httpx.Response:
    """Upserts rows of a table over a connection of its own; returns the response."""
    url = f"http://127.0.0.1:{server.admin_port}{MODEL}/tables/{table}:upsert"
    return httpx.post(url, json={"ids": ids, "rows": rows} | more, timeout=PATIENCE_S)


def number(server: ServerProcess, value: float) -> None:
    """Writes one number into all rows and columns of the table "user"."""
    response = change(server, "user", USERS, [[value, value]] * 5)
    assert response.status_code == 200, response.text
    assert response.json()["rows"] == 5


def metrics(server: ServerProcess) -> dict[str, Family]:
    """Returns the metrics."""
    return read_exposition(httpx.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=PATIENCE_S).text)


def told(server: ServerProcess, name: str) -> float:
    """Returns the metric's value for the deltas of version 1."""
    return metrics(server)[f"embedding_server_delta_{name}"].value(model="default", version="1")


class Reader:
    """A client that looks up all users again and again, and keeps what it saw; over HTTP, and gRPC in turn."""

    def __init__(self, server: ServerProcess, is_over: threading.Event) -> None:
        self.seen: list[float] = []
        self.faults: list[object] = []
        self._server, self._is_over = server, is_over
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{self._server.http_port}", timeout=PATIENCE_S) as http:
                for turn in itertools.count():
                    if self._is_over.is_set():
                        return
                    self._look(http, is_grpc=turn % 2 == 1)
                    time.sleep(0.01)
        except Exception as error:
            self.faults.append(error)

    def _look(self, http: httpx.Client, *, is_grpc: bool) -> None:
        if is_grpc:
            rows = predict_grpc(self._server.channel, {"user": np.array(USERS * 20)}, "lookup")["user"]
        else:
            answer = http.post(f"{MODEL}:lookup", json={"features": {"user": USERS * 20}})
            assert answer.status_code == 200, answer.text
            rows = np.array(answer.json()["embeddings"]["user"])
        if rows.min() != rows.max():
            self.faults.append(rows.tolist())
        self.seen.append(float(rows.flat[0]))

    def end(self) -> None:
        """Waits until the thread has ended, and fails if it noted faults."""
        self._thread.join(PATIENCE_S)
        assert self.faults == []


@contextmanager
def readers(server: ServerProcess, count: int = 2) -> Iterator[list[Reader]]:
    """Lets clients read in threads while the block runs."""
    is_over = threading.Event()
    reading = [Reader(server, is_over) for _ in range(count)]
    try:
        yield reading
        until(lambda: all(len(reader.seen) > 10 or reader.faults for reader in reading))
    finally:
        is_over.set()
        for reader in reading:
            reader.end()


def test_upserts_under_load_are_seen_whole_and_in_order(serve: Serve, base: Path, tmp_path: Path) -> None:
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    number(server, 1)
    with readers(server) as reading:
        for value in range(2, 40):
            number(server, value)
            # The upsert is answered, so every lookup that starts now reads its rows.
            assert server.lookup({"user": [0, 4]})["user"] == [[value] * 2] * 2
        until(lambda: all(reader.seen and reader.seen[-1] == 39 for reader in reading))
    for reader in reading:
        assert reader.seen == sorted(reader.seen)
    assert (told(server, "last_sequence"), told(server, "rows"), told(server, "lag_seconds")) == (39, 5, 0)


def test_a_row_names_the_delta_that_wrote_it_last(serve: Serve, tmp_path: Path) -> None:
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    path = f"{MODEL}/tables/user:row?id="
    assert server.http.get(path + "1").json()["delta"] is None
    begin_s = time.time()
    for value in (7, 8):
        assert change(server, "user", [1, 2], [[value, value]] * 2).status_code == 200
    row = server.http.get(path + "1").json()
    assert row["values"] == [8, 8] and row["norm"] == pytest.approx(128**0.5)
    assert row["delta"]["sequence"] == 2 and begin_s - 1 < row["delta"]["time_s"] < time.time() + 1
    assert server.http.get(path + "3").json()["delta"] is None


def test_nothing_that_was_answered_is_lost_with_the_process(serve: Serve, tmp_path: Path) -> None:
    done = 0
    for _ in range(2):
        server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
        # Requests are answered only after the journal is read, so none sees older rows than were acknowledged.
        shown = server.lookup({"user": USERS})["user"]
        assert shown == ([[i, 10 * i] for i in USERS] if not done else [shown[0]] * 5) and shown[0][0] >= done
        acknowledged = [shown[0][0] if done else 0.0]

        def go_on(server: ServerProcess = server, answered: list[float] = acknowledged) -> None:
            try:
                for value in itertools.count(int(answered[0]) + 1):
                    number(server, value)
                    answered.append(value)
            except httpx.HTTPError:
                pass

        writer = threading.Thread(target=go_on)
        writer.start()
        until(lambda seen=acknowledged: len(seen) > 15)
        server.signal(signal.SIGKILL)
        writer.join(PATIENCE_S)
        server.exit_code()
        done = int(acknowledged[-1])
    last = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    assert last.lookup({"user": [3]})["user"][0][0] in (done, done + 1)


@pytest.fixture(scope="module")
def forged() -> dict[str, tuple[Any, str]]:
    """Name of a bad delta file -> a function that makes its bytes, and the reason that the metrics give."""

    def right(version: Path, sequence: int, **more: Any) -> bytes:
        return delta_bytes(version, sequence, "user", [0], [[9, 9]], **more)

    def flipped(version: Path, sequence: int) -> bytes:
        data = bytearray(right(version, sequence))
        data[-10] ^= 1
        return bytes(data)

    def larger(version: Path, sequence: int) -> bytes:
        data = right(version, sequence)[:-4]
        data = data[:40] + struct.pack("<Q", 2**40) + data[48:]
        return data + struct.pack("<I", crc32c(data))

    return {
        "torn": (lambda version, n: right(version, n)[:-7], "truncated"),
        "flipped": (flipped, "corrupt"),
        "of another version": (lambda version, n: right(version, n, fingerprint=b"\1" * 32), "fingerprint"),
        "of another number": (lambda version, n: right(version, n + 1), "sequence"),
        "of rows that are not there": (lambda version, n: delta_bytes(version, n, "user", [0, 5], [[9, 9]] * 2), "ids"),
        "of another shape": (lambda version, n: delta_bytes(version, n, "user", [0], [[9.0]]), "table"),
        "of another table": (lambda version, n: delta_bytes(version, n, "../../etc", [0], [[9, 9]]), "table"),
        "that claims a terabyte": (larger, "truncated"),
        "empty": (lambda version, n: b"", "truncated"),
        "text": (lambda version, n: b"#!/bin/sh\n" * 100, "format"),
    }


def test_bad_files_change_nothing_and_stop_nothing(
    serve: Serve, base: Path, tmp_path: Path, forged: dict[str, tuple[Any, str]]
) -> None:
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    version = base / "1"
    number(server, 1)
    with readers(server):
        for place, (make, _) in enumerate(forged.values()):
            drop(version, 10 + place, make(version, 10 + place))
        good = tmp_path / "good"
        good.write_bytes(delta_bytes(version, 30, "user", [0], [[9, 9]]))
        (version / "deltas" / "30.delta").symlink_to(good)
        os.mkfifo(version / "deltas" / "31.delta")
        reasons = [reason for _, reason in forged.values()] + ["not_a_file"] * 2
        until(lambda: _refusals(server) == {reason: reasons.count(reason) for reason in reasons})
        assert server.lookup({"user": USERS})["user"] == [[1, 1]] * 5
        number(server, 2)
        drop(version, 40, delta_bytes(version, 40, "user", USERS, [[3, 3]] * 5))
        until(lambda: server.lookup({"user": USERS})["user"] == [[3, 3]] * 5)
    server.wait_for_log("delta is refused", fault="corrupt")


def _refusals(server: ServerProcess) -> dict[str, float]:
    samples = metrics(server)["embedding_server_delta_refused_total"].samples
    return {dict(labels)["reason"]: value for (_, labels), value in samples.items()}


def test_a_journal_that_can_not_be_written_refuses_upserts_alone(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    refused = change(server, "user", [0], [[9, 9]])
    assert refused.status_code == 503 and "nothing was changed" in refused.json()["error"]
    assert server.lookup({"user": [0, 1]})["user"] == [[0, 0], [1, 10]]
    failures = metrics(server)["embedding_server_delta_journal_failures_total"]
    told = [failures.value(model="default", version="1", reason=reason) for reason in ("full", "held", "unwritable")]
    assert told == [0, 0, 1]
    (tmp_path / "journal").unlink()
    assert change(server, "user", [0], [[9, 9]]).status_code == 200
    assert server.lookup({"user": [0]})["user"] == [[9, 9]]


def test_what_does_not_fit_is_told_in_words(serve: Serve, tmp_path: Path) -> None:
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    for table, ids, rows, status, text in (
        ("user", [7], [[1, 2]], 400, "table 'user': id 7 at position 0 is out of range, it has ids 0 to 4."),
        ("user", [1], [[1, 2, 3]], 400, "table 'user': rows of 3 numbers, it has 2."),
        ("user", [0] * 65_537, [[1, 2]] * 65_537, 400, 'table "user": 65537 rows, the limit is 65536 per request.'),
        ("users", [1], [[1, 2]], 404, 'There is no table "users". Tables: tag, user.'),
        ("user", [1], [[1], [2, 3]], 400, "rows"),
    ):
        answer = change(server, table, ids, rows)
        assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text
    assert not (tmp_path / "journal").exists()
    without = serve(admin_port="auto").ready()
    assert "--delta_journal_dir" in change(without, "user", [0], [[1, 2]]).json()["error"]


def test_a_new_version_starts_clean_and_has_what_was_folded_into_it(serve: Serve, base: Path, tmp_path: Path) -> None:
    server = serve(admin_port="auto", delta_journal_dir=tmp_path / "journal").ready()
    number(server, 7)
    drop(base / "1", 9, delta_bytes(base / "1", 9, "tag", [2], [[0.5, 1, 2]]))
    tags = {"tags": [[2], [3]]}
    until(lambda: server.lookup(tags)["tags"] == [[0.5, 1, 2], [3, 9, 1]])
    (journal,) = (tmp_path / "journal").rglob("*.journal")
    with readers(server) as reading:
        compact(base / "1", journal=journal)
        server.wait_for_log("version state", version=2, state="AVAILABLE")
        until(lambda: server.http.get(f"{MODEL}/versions/1").json()["model_version_status"][0]["state"] == "END")
    assert {value for reader in reading for value in reader.seen} == {7}
    assert server.lookup(tags)["tags"] == [[0.5, 1, 2], [3, 9, 1]]
    assert metrics(server)["embedding_server_delta_rows"].value(model="default", version="2") == 0
    number(server, 8)
    assert server.lookup({"user": [0]})["user"] == [[8, 8]]
