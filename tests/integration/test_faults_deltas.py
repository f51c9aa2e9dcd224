"""Damages the files under tables whose rows were changed: their maps have private pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.integration.test_deltas import change, metrics
from tests.integration.test_faults_files import lost
from tests.toy_model import SHARD

LOOKUP = "/v1/models/default:lookup"


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
    response = server.http.post(LOOKUP, json={"features": {"user": [1]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (503, "UNAVAILABLE")


# A changed row is in a private copy of its page, which the kernel also takes away if the file is cut short.
@pytest.mark.parametrize("row", [1, 2], ids=["changed", "as it was"])
def test_a_bus_error_in_a_table_with_changed_rows_is_that_requests_error(
    changed: ServerProcess, base: Path, row: int
) -> None:
    os.truncate(base / "1" / SHARD, 0)
    response = changed.http.post(LOOKUP, json={"features": {"user": [row]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (500, "DATA_LOSS")
    is_taken_out(changed)


def test_rows_written_to_a_table_whose_file_is_cut_short_end_nothing_and_are_not_lost(
    changed: ServerProcess, serve: Serve, base: Path, tmp_path: Path
) -> None:
    as_exported = (base / "1" / SHARD).read_bytes()
    os.truncate(base / "1" / SHARD, 0)
    # The upsert is in the journal before the server writes to the mapped table and finds it cut short.
    assert change(changed, "user", [3], [[5, 6]]).status_code == 200
    response = changed.http.post(LOOKUP, json={"features": {"user": [3]}})
    assert (response.status_code, response.headers["X-Error-Code"]) == (500, "DATA_LOSS")
    is_taken_out(changed)
    (base / "1" / SHARD).write_bytes(as_exported)
    again = serve(delta_journal_dir=tmp_path / "journal").ready()
    assert again.lookup({"user": [1, 2, 3]}) == {"user": [[7, 8], [2, 20], [5, 6]]}
