"""Damages files that the server has mapped: the server goes on, and sends no wrong answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until
from tests.integration.steady_clients import SteadyClients
from tests.integration.test_reload import versions
from tests.toy_model import SHARD, TAG_STRINGS, write_toy_model


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
    until(lambda: server.http.get("/readyz").status_code == 200)
    assert server.lookup({"user": [1]}) == {"user": [[4, 40]]}


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
