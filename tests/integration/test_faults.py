"""Faults of files, disks, memory and the process: the server sends no wrong answer, and starts again in its place.

What is simulated: RLIMIT_FSIZE stands for a disk that is full or read-only (every write of a file of some length fails,
with EFBIG in place of ENOSPC or EROFS), /dev/full and a small tmpfs for a full disk below the log, RLIMIT_AS for a
control group's limit (an allocation fails in place of a process being killed).
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from h2.errors import ErrorCodes

from tests.conformance.wires import predict_request
from tests.exposition import read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.h2_client import H2Client, framed
from tests.integration.hung_disk import HungDisk, NoHungDisk
from tests.integration.limited import LOOKUP, limited, lookup, used_while_idle_s
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, stopped, until
from tests.integration.raw_http import BODY, connect, post, rest, status
from tests.integration.silent import small_disk
from tests.integration.steady_clients import SteadyClients
from tests.integration.test_deltas import change, metrics
from tests.integration.test_reload import versions
from tests.toy_model import MANIFEST, SHARD, TAG_STRINGS, write_toy_model


def lost(server: ServerProcess, version: int) -> str:
    """Waits until a version has ended with DATA_LOSS; returns the error's text."""
    until(lambda: versions(server).get(version, {}).get("status", {}).get("error_code") == "DATA_LOSS")
    return str(versions(server)[version]["status"]["error_message"])


def test_a_tables_file_that_is_cut_short_costs_one_version_and_no_wrong_answer(serve: Serve, base: Path) -> None:
    add_version(base, 2, scale=2)
    server = serve().ready()
    with SteadyClients(server) as clients:
        until(lambda: clients.counts[2] > 20 or clients.wrong)
        os.truncate(base / "2" / SHARD, 0)
        lost(server, 2)
        until(lambda: clients.counts[1] > 20 or clients.wrong)
        # Version 3 arrives after version 2 was damaged, and is served.
        add_version(base, 3, scale=3)
        until(lambda: clients.counts[3] > 20 or clients.wrong)
    assert clients.wrong == []
    # UNAVAILABLE: the request came after one version had been unloaded, and before another one was loaded.
    assert clients.counts.keys() <= {1, 2, 3, "DATA_LOSS", "UNAVAILABLE"}, clients.counts
    # Version 1 is unloaded when no request uses it, which may be after version 3 has answered.
    until(lambda: list(versions(server)) == [3, 2])


def test_a_bus_error_in_a_request_is_that_requests_error(serve: Serve, base: Path) -> None:
    # The server does not poll the folder during this test, so the lookup finds that the file is cut short.
    server = serve(file_system_poll_wait_seconds=3600).ready()
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    os.truncate(base / "1" / SHARD, 0)
    response = server.http.post("/v1/models/default:lookup", json={"features": {"user": [1]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (500, "DATA_LOSS")
    assert 'version 1 of model "default" were damaged' in response.json()["error"]
    assert str(SHARD) in lost(server, 1)
    until(lambda: server.http.get("/readyz").status_code == 503)
    assert server.http.get("/healthz").status_code == 200
    response = server.http.post("/v1/models/default:lookup", json={"features": {"user": [1]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (503, "UNAVAILABLE")


def test_the_only_version_mended_in_its_place_is_served_again(serve: Serve, base: Path, tmp_path: Path) -> None:
    server = serve(load_retry_interval_micros=50_000, max_num_load_retries=1000).ready()
    os.truncate(base / "1" / SHARD, 0)
    lost(server, 1)
    write_toy_model(tmp_path / "again", scale=4)
    for file in sorted((tmp_path / "again").rglob("*")):
        if file.is_file():
            shutil.copyfile(file, base / "1" / file.relative_to(tmp_path / "again"))
    until(lambda: server.tells({"user": [1]}, {"user": [[4, 40]]}))


def test_a_tables_file_that_is_written_to_is_taken_out_within_a_poll(serve: Serve, base: Path) -> None:
    add_version(base, 2, scale=2)
    # No checksum is computed, because it might find the changed bytes before the check of the file's time does.
    server = serve(verify_tables="off").ready()
    with (base / "2" / SHARD).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\1")
    assert "was written to since it was opened" in lost(server, 2)
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))


def test_a_file_swapped_by_rename_or_deleted_changes_nothing(serve: Serve, base: Path, tmp_path: Path) -> None:
    server = serve().ready()
    write_toy_model(tmp_path / "other", scale=5)
    with SteadyClients(server) as clients:
        until(lambda: clients.counts[1] > 20 or clients.wrong)
        os.replace(tmp_path / "other" / SHARD, base / "1" / SHARD)
        before = clients.counts[1]
        until(lambda: clients.counts[1] > before + 200 or clients.wrong)
        shutil.rmtree(base / "1" / "variables")
        before = clients.counts[1]
        until(lambda: clients.counts[1] > before + 200 or clients.wrong)
    assert (clients.wrong, clients.counts.keys()) == ([], {1})


def test_a_vocabulary_that_is_cut_short_is_found_too(serve: Serve, base: Path) -> None:
    add_version(base, 2, scale=2)
    server = serve().ready()
    # The file is complete when the version is loaded, and is cut short while the server has it mapped.
    assert len((base / "2" / "assets" / "tag.txt").read_text().splitlines()) == len(TAG_STRINGS)
    os.truncate(base / "2" / "assets" / "tag.txt", 0)
    assert "tag.txt" in lost(server, 2)
    until(lambda: server.tells({"tags": [["red"]]}, {"tags": [[1, 1, 1]]}))


LOOKUP_PATH = "/v1/models/default:lookup"


@pytest.fixture
def changed(serve: Serve, tmp_path: Path) -> ServerProcess:
    """Starts a server with a changed row that only its journal has; only requests look into the model's folder."""
    server = serve(
        file_system_poll_wait_seconds=3600, admin_port="auto", delta_journal_dir=tmp_path / "journal"
    ).ready()
    assert change(server, "user", [1], [[7, 8]]).status_code == 200
    assert server.lookup({"user": [1, 2]}) == {"user": [[7, 8], [2, 20]]}
    return server


def is_taken_out(server: ServerProcess) -> None:
    """Waits until the damaged version is out of service, and checks that the server goes on without it."""
    assert str(SHARD) in lost(server, 1)
    until(lambda: server.http.get("/readyz").status_code == 503)
    assert server.http.get("/healthz").status_code == 200
    errors = metrics(server)["embedding_server_version_error"]
    assert errors.value(code="DATA_LOSS", model="default", version=1) == 1
    response = server.http.post(LOOKUP_PATH, json={"features": {"user": [1]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (503, "UNAVAILABLE")


# A changed row is in a private copy of its page, which the kernel also takes away if the file is cut short.
@pytest.mark.parametrize("row", [1, 2], ids=["changed", "as it was"])
def test_a_bus_error_in_a_table_with_changed_rows_is_that_requests_error(
    changed: ServerProcess, base: Path, row: int
) -> None:
    os.truncate(base / "1" / SHARD, 0)
    response = changed.http.post(LOOKUP_PATH, json={"features": {"user": [row]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (500, "DATA_LOSS")
    is_taken_out(changed)


def test_rows_written_to_a_table_whose_file_is_cut_short_end_nothing_and_are_not_lost(
    changed: ServerProcess, serve: Serve, base: Path, tmp_path: Path
) -> None:
    as_exported = (base / "1" / SHARD).read_bytes()
    os.truncate(base / "1" / SHARD, 0)
    # The upsert is in the journal before the server writes to the mapped table and finds it cut short.
    assert change(changed, "user", [3], [[5, 6]]).status_code == 200
    response = changed.http.post(LOOKUP_PATH, json={"features": {"user": [3]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (500, "DATA_LOSS")
    is_taken_out(changed)
    (base / "1" / SHARD).write_bytes(as_exported)
    again = serve(delta_journal_dir=tmp_path / "journal").ready()
    assert again.lookup({"user": [1, 2, 3]}) == {"user": [[7, 8], [2, 20], [5, 6]]}


def flipped(folder: Path, **options: object) -> Path:
    """Writes a version with one bit of a table flipped; returns its folder."""
    write_toy_model(folder, **options)  # type: ignore[arg-type]
    data = bytearray((folder / SHARD).read_bytes())
    data[-2] ^= 64
    (folder / SHARD).write_bytes(data)
    return folder


def verified(server: ServerProcess, version: int, name: str = "tables_verified") -> float:
    """Reads a metric of the tables of a version, by default whether they are verified."""
    found = read_exposition(server.http.get("/metrics").text)[f"embedding_server_{name}"]
    return found.value(model="default", version=version)


def test_a_new_version_with_a_flipped_bit_never_answers(serve: Serve, base: Path, tmp_path: Path) -> None:
    server = serve().ready()
    until(lambda: verified(server, 1) == 1)
    with SteadyClients(server) as clients:
        until(lambda: clients.counts[1] > 20 or clients.wrong)
        os.rename(flipped(tmp_path / "incoming", scale=2), base / "2")
        assert "have the checksum" in lost(server, 2)
        before = clients.counts[1]
        until(lambda: clients.counts[1] > before + 20 or clients.wrong)
    assert (clients.wrong, clients.counts.keys()) == ([], {1})
    # Version 3 has no flipped bit; the server verifies its checksums before version 3 answers.
    write_toy_model(tmp_path / "good", scale=3)
    os.rename(tmp_path / "good", base / "3")
    until(lambda: server.tells({"user": [1]}, {"user": [[3, 30]]}))
    assert verified(server, 3) == 1


def test_a_flipped_bit_at_the_start_is_found_behind_it(serve: Serve, base: Path) -> None:
    flipped(base / "2", scale=2)
    server = serve().answering()
    assert "have the checksum" in lost(server, 2)
    # The server serves version 1 as if the damaged version 2 did not exist.
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))


def test_nothing_is_read_where_nobody_asks_for_it(serve: Serve, base: Path) -> None:
    flipped(base / "2", scale=2)
    server = serve(verify_tables="off").ready()
    assert server.lookup({"user": [1]}) == {"user": [[2, 20]]}
    assert (verified(server, 2), verified(server, 2, "tables_verification_due")) == (0, 0)


def test_a_slow_verification_holds_up_no_request_and_no_end(serve: Serve, base: Path, tmp_path: Path) -> None:
    # The server checks a byte in ten seconds, so the checksums of the toy model take it many minutes.
    server = serve(verify_tables="auto", verify_tables_mib_per_s=1e-7).ready()
    write_toy_model(tmp_path / "incoming", scale=2)
    os.rename(tmp_path / "incoming", base / "2")
    until(lambda: versions(server).get(2, {}).get("state") == "LOADING")
    # Version 1 serves although its tables are not verified, because no version served when it was loaded; version 2 has
    # to wait.
    assert (verified(server, 1), verified(server, 1, "tables_verification_due")) == (0, 1)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    server.signal(15)
    assert server.exit_code() == 0


def test_a_server_killed_under_load_is_restarted_in_its_place(serve: Serve, base: Path) -> None:
    first = serve().ready()
    with SteadyClients(first) as clients:
        until(lambda: clients.counts[1] > 40 or clients.wrong)
        os.kill(first.pid, signal.SIGKILL)
        first.exit_code()
        second = serve(port=first.grpc_port, rest_api_port=first.http_port).ready()
        before = clients.counts[1]
        until(lambda: clients.counts[1] > before + 40 or clients.wrong)
    assert clients.wrong == []
    # Clients try again where no server listens, where it ended before it answered, and where it starts.
    assert clients.unexpected("UNAVAILABLE") == []
    # Other channels to this address share a connection whose client waits after it was refused.
    with grpc.insecure_channel(f"127.0.0.1:{second.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]


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


def test_a_log_on_a_full_disk_goes_on_once_there_is_room(base: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 256 << 10), (disk / "log").open("wb") as log:
        with limited(base, stderr=log, log_format="json") as (_, http):
            with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(512))

            def is_refused() -> bool:
                assert http.post(LOOKUP, json={"features": {"user": [77]}}).status_code == 400
                lost = read_exposition(http.get("/metrics").text)["embedding_server_log_lines_dropped_total"]
                return lost.value(reason="output") > 0

            until(is_refused)
            assert lookup(http, [1]) == ROW_1
            (disk / "filler").unlink()
            until(lambda: is_refused() and b"log lines dropped" in (disk / "log").read_bytes())
        whole = [is_json(line) for line in (disk / "log").read_bytes().splitlines()]
        assert whole.count(False) <= 1, "the line that the disk took in part"


def is_json(line: bytes) -> bool:
    """Says whether a line of the log is whole."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_a_server_that_was_stopped_for_a_while_cuts_no_upload(serve: Serve) -> None:
    server = serve(stall_timeout_s=1).ready()
    upload = post(BODY, b"connection: close")
    message = framed(predict_request("default", {"user": np.array([1])}))
    with connect(server) as sock, H2Client(server.grpc_port) as client:
        sock.sendall(upload[:-5])
        stream = client.begin()
        client.send(stream, message[:-5], is_last=False)
        with stopped(server.pid):
            time.sleep(3)
        assert server.http.get("/readyz").status_code == 200
        sock.sendall(upload[-5:])
        client.send(stream, message[-5:])
        assert status(rest(sock)) == 200 and client.answer(stream).status == 0


@contextmanager
def served_through_disk(base: Path, **settings: object) -> Iterator[tuple[HungDisk, ServerProcess]]:
    """Shows a model folder through a file system that can fail, of which the kernel keeps nothing, and serves it."""
    try:
        disk = HungDisk(base, base.parent / "disk", 1 << 40, valid_s=0)
    except NoHungDisk as error:
        pytest.skip(f"{error}: NO FILE SYSTEM FAILED")
    given = {"model_base_path": disk.mount, "graph_signatures": "off", "file_system_poll_wait_seconds": 0.05}
    # The server ends before its disk.
    with disk, ServerProcess(**(given | settings)) as server:
        yield disk, server.ready()


def folder_notices(server: ServerProcess) -> list[str]:
    messages = [one["message"] for one in server.http.get("/v1/statusz").json()["attention"]]
    return [message for message in messages if message.startswith("no new versions are seen: ")]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_system_that_fails_unloads_nothing_and_is_read_again(base: Path, number: int) -> None:
    with served_through_disk(base, version_settle_s=0.1) as (disk, server):
        disk.error = lambda path, is_read: number
        until(lambda: folder_notices(server))
        assert os.strerror(number) in folder_notices(server)[0] and str(disk.mount) in folder_notices(server)[0]
        server.wait_for_log("no new versions are seen")
        add_version(base, 2, scale=2)
        assert server.lookup({"user": [1]}) == {"user": ROW_1} and versions(server)[1]["state"] == "AVAILABLE"
        disk.error = lambda path, is_read: 0
        until(lambda: server.tells({"user": [1]}, {"user": [[2, 20]]}))
        until(lambda: not folder_notices(server))
        assert "polling failed" not in server.text()


def test_files_that_another_host_removed_keep_no_new_version_from_loading(base: Path) -> None:
    with served_through_disk(base) as (disk, server):
        # NFS answers so for an open file that another host has removed.
        disk.error = lambda path, is_read: errno.ESTALE if base / "1" in path.parents else 0
        add_version(base, 2, scale=2)
        until(lambda: server.tells({"user": [1]}, {"user": [[2, 20]]}))
        until(lambda: list(versions(server)) == [2])
        assert "polling failed" not in server.text()


def test_a_read_that_fails_while_a_version_loads_is_no_damage(base: Path) -> None:
    with served_through_disk(base) as (disk, server):
        disk.error = lambda path, is_read: errno.EIO if is_read and path == base / "2" / SHARD else 0
        add_version(base, 2, scale=2)
        until(lambda: versions(server).get(2, {}).get("state") == "END")
        told = versions(server)[2]["status"]
        assert told["error_code"] == "FAILED_PRECONDITION" and "Input/output error" in told["error_message"], told
        assert server.lookup({"user": [1]}) == {"user": ROW_1}
        disk.error = lambda path, is_read: 0
        until(lambda: server.tells({"user": [1]}, {"user": [[2, 20]]}))


def test_an_unmounted_volume_unloads_nothing(serve: Serve, base: Path) -> None:
    mounted, settle_s = base.parent / "mounted", 0.1
    mounted.mkdir()
    with ExitStack() as stack:
        volume = stack.enter_context(ExitStack())
        volume.enter_context(small_disk(mounted, 1 << 20))
        shutil.copytree(base / "1", mounted / "1")
        server = serve(model_base_path=mounted, version_settle_s=settle_s).ready()
        volume.close()
        until(lambda: folder_notices(server))
        assert "mount their volume again" in folder_notices(server)[0]
        time.sleep(5 * settle_s)
        assert server.lookup({"user": [1]}) == {"user": ROW_1} and server.http.get("/readyz").status_code == 200
        stack.enter_context(small_disk(mounted, 1 << 20))
        write_toy_model(mounted / "2", scale=2)
        until(lambda: server.tells({"user": [1]}, {"user": [[2, 20]]}))
        # On the volume itself, an empty folder is one whose versions were removed.
        shutil.rmtree(mounted / "2")
        until(lambda: server.http.get("/readyz").status_code == 503)


def test_calls_that_were_cancelled_while_the_server_was_stopped_close_no_connection(serve: Serve) -> None:
    server = serve().ready()
    message = predict_request("default", {"user": np.array([1])})
    with H2Client(server.grpc_port) as client:
        assert client.call(message).status == 0
        with stopped(server.pid):
            streams = [client.begin() for _ in range(128)]
            for stream in streams:
                client.send(stream, framed(message))
            for stream in streams:
                client.h2.reset_stream(stream, ErrorCodes.CANCEL)
            client.flush()
        assert client.call(message).status == 0


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
