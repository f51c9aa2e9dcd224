"""A server refuses or removes versions whose tables differ from their checksums, at the start and later."""

from __future__ import annotations

import os
from pathlib import Path

from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.integration.steady_clients import SteadyClients
from tests.integration.test_faults_files import lost
from tests.integration.test_reload import versions
from tests.toy_model import SHARD, write_toy_model


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
    until(lambda: server.http.get("/readyz").status_code == 200)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}


def test_nothing_is_read_where_nobody_asks_for_it(serve: Serve, base: Path) -> None:
    flipped(base / "2", scale=2)
    server = serve(verify_tables="off").ready()
    assert server.lookup({"user": [1]}) == {"user": [[2, 20]]}
    assert (verified(server, 2), verified(server, 2, "tables_verification_due")) == (0, 0)


def test_a_slow_verification_holds_up_no_request_and_no_end(serve: Serve, base: Path, tmp_path: Path) -> None:
    # The server checks 10 bytes a second (0.00001 MiB), so the checksums of the toy model take it long.
    server = serve(verify_tables="auto", verify_tables_mib_per_s=0.00001).ready()
    write_toy_model(tmp_path / "incoming", scale=2)
    os.rename(tmp_path / "incoming", base / "2")
    until(lambda: versions(server).get(2, {}).get("state") == "LOADING")
    # Version 1 serves although its tables are not verified, because no version served when it was loaded; version 2 has
    # to wait.
    assert (verified(server, 1), verified(server, 1, "tables_verification_due")) == (0, 1)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    server.signal(15)
    assert server.exit_code() == 0
