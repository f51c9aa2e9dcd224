"""The server goes on with a full disk, with a log that nobody reads, and without free descriptors or memory.

What is simulated: RLIMIT_FSIZE stands for a disk that is full or read-only (every write of a file of some length fails,
with EFBIG in place of ENOSPC or EROFS), /dev/full for a full disk below the log, RLIMIT_AS for a control group's limit
(an allocation fails in place of a process being killed).
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import add_version
from tests.integration.limited import LOOKUP, limited, lookup, used_while_idle_s
from tests.integration.process import PATIENCE_S, until
from tests.toy_model import MANIFEST

ROW_1 = [[1, 10]]
# Type of the fixture `shared`: a model folder, a client of its server, and numbers for new versions.
Shared = tuple[Path, httpx.Client, Iterator[int]]


def test_a_disk_that_takes_nothing_keeps_nobody_from_serving(base: Path) -> None:
    limits = {resource.RLIMIT_FSIZE: os.sysconf("SC_PAGESIZE")}
    with (
        open("/dev/full", "wb") as full,
        limited(base, limits=limits, stderr=full) as (
            process,
            http,
        ),
    ):
        assert lookup(http, [1]) == ROW_1
        add_version(base, 2, scale=2)
        until(lambda: lookup(http, [1]) == [[2, 20]])
        # The refused request also makes a line of the log, which can not be written.
        assert http.post(LOOKUP, json={"features": {"user": [77]}}).status_code == 400
        assert process.poll() is None


def test_a_log_whose_reader_is_gone_keeps_nobody_from_serving(base: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as log:
        os.close(reading)
        with limited(base, stderr=log) as (_, http):
            assert lookup(http, [1]) == ROW_1
            add_version(base, 2, scale=2)
            until(lambda: lookup(http, [1]) == [[2, 20]])


def test_without_descriptors_nobody_new_is_taken_and_nothing_spins(base: Path) -> None:
    with ExitStack() as stack:
        process, http = stack.enter_context(limited(base, limits={resource.RLIMIT_NOFILE: 80}))
        assert lookup(http, [1]) == ROW_1
        address = (http.base_url.host, http.base_url.port)
        # These are more connections than the server may have descriptors.
        many = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        # A server that calls accept() in a loop without free descriptors would use at least half of the second.
        assert used_while_idle_s(process.pid, 1) < 0.5
        assert process.poll() is None
        for one in many:
            one.close()
        http.close()
        fresh = stack.enter_context(httpx.Client(base_url=http.base_url, timeout=PATIENCE_S))
        until(lambda: answers(fresh))
        # A version that arrives now can be opened, because descriptors are free again.
        add_version(base, 2, scale=2)
        until(lambda: lookup(fresh, [1]) == [[2, 20]])


def answers(http: httpx.Client) -> bool:
    """Says whether the server answers a lookup of row 1 rightly; False if the connection fails."""
    try:
        return bool(lookup(http, [1]) == ROW_1)
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 4096,
        b"{",
        b"[]",
        b"[" * 200_000,
        b'{"format_version": 1e999}',
        b'{"format_version": 1, "tables": 7}',
    ],
    ids=["empty", "zeros", "cut", "a-list", "deep", "a-huge-number", "another-type"],
)
def test_a_corrupt_manifest_is_a_version_that_does_not_load(shared: Shared, text: bytes) -> None:
    base, http, numbers = shared
    version = next(numbers)
    broken = base.parent / "broken"
    add_version(base.parent, version)
    (base.parent / str(version)).rename(broken)
    (broken / MANIFEST).write_bytes(text)
    broken.rename(base / str(version))

    def state() -> tuple[str, str]:
        told = http.get("/v1/models/default").json()["model_version_status"]
        of_it = [s for s in told if s["version"] == str(version)]
        return (of_it[0]["state"], of_it[0]["status"]["error_code"]) if of_it else ("", "")

    until(lambda: state()[0] == "END")
    assert state() == ("END", "FAILED_PRECONDITION")
    assert lookup(http, [1]) == ROW_1


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Starts a server that keeps serving version 1; yields the model's folder, a client, and new versions' numbers."""
    base = tmp_path_factory.mktemp("manifests") / "model"
    base.mkdir()
    add_version(base, 1)
    # The server waits version_settle_s for a folder whose manifest it can not read, because the folder may still be
    # copied.
    with limited(base, version_settle_s=0.1) as (_, http):
        yield base, http, count(2)
