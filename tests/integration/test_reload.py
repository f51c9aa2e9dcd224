"""Versions come and go under load; no request fails, and no answer mixes two versions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, stopped, until
from tests.integration.steady_clients import SteadyClients
from tests.toy_model import SHARD, write_toy_model


def versions(server: ServerProcess, model: str = "default") -> dict[int, dict[str, Any]]:
    """Returns the status of each version, by number, without versions that ended without an error."""
    statuses = server.http.get(f"/v1/models/{model}").json()["model_version_status"]
    ended = {"error_code": "OK", "error_message": ""}
    return {int(s["version"]): s for s in statuses if (s["state"], s["status"]) != ("END", ended)}


def test_new_versions_are_swapped_in_under_load(serve: Serve, base: Path) -> None:
    server = serve().ready()
    with SteadyClients(server) as clients:
        for version in range(2, 8):
            until(lambda seen=version - 1: seen in clients.counts or clients.wrong)
            add_version(base, version, scale=version, padding=version)
            until(lambda: list(versions(server)) == [version])  # noqa: B023
        until(lambda: 7 in clients.counts or clients.wrong)
    assert clients.wrong == []
    assert set(clients.counts) == {1, 2, 3, 4, 5, 6, 7}
    metrics = server.http.get("/metrics").text
    assert 'version="7"' in metrics
    assert 'version="1"' not in metrics, "series of versions that are gone"
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert str(base / "7" / SHARD) in maps


def test_a_corrupt_version_leaves_the_old_one_serving(serve: Serve, base: Path) -> None:
    server = serve(max_num_load_retries=0).ready()
    with SteadyClients(server) as clients:
        broken = base.parent / "broken"
        shutil.copytree(base / "1", broken)
        (broken / SHARD).write_bytes((broken / SHARD).read_bytes()[:-1])
        broken.rename(base / "2")
        until(lambda: versions(server).get(2, {}).get("state") == "END")
        status = versions(server)[2]["status"]
        assert status["error_code"] == "FAILED_PRECONDITION"
        assert "variables.data-00000-of-00001" in status["error_message"]
        assert versions(server)[1]["state"] == "AVAILABLE"
        assert server.http.get("/readyz").status_code == 200
        add_version(base, 3, scale=3)
        until(lambda: 3 in clients.counts or clients.wrong)
        until(lambda: sorted(versions(server)) == [2, 3])
    assert clients.wrong == []
    assert set(clients.counts) == {1, 3}


def test_a_model_folder_that_vanishes_keeps_being_served(serve: Serve, base: Path) -> None:
    server = serve(version_settle_s=3600).ready()
    # The folder is empty for a moment. A scan that meets it so unloads nothing.
    shutil.rmtree(base)
    server.wait_for_log("no new versions are seen")
    assert server.lookup({"user": [4]}) == {"user": [[4, 40]]}
    assert server.http.get("/readyz").status_code == 200
    add_version(base.parent, 0)
    base.mkdir()
    add_version(base, 2, scale=2)
    until(lambda: server.tells({"user": [4]}, {"user": [[8, 80]]}))


def test_a_version_that_is_overwritten_in_place_between_two_scans_is_served_again(serve: Serve, base: Path) -> None:
    server = serve().ready()
    write_toy_model(base.parent / "new", scale=2)
    with stopped(server.pid):
        for file in sorted((base.parent / "new").rglob("*")):
            if file.is_file():
                shutil.copyfile(file, base / "1" / file.relative_to(base.parent / "new"))

    def is_new() -> bool:
        # Until the next scan, the check of checksums may call the files damaged.
        response = server.http.post("/v1/models/default:lookup", json={"features": {"user": [4]}})
        assert response.status_code in (200, 503) or "were damaged" in response.text, response.text
        return response.status_code == 200 and response.json()["embeddings"] == {"user": [[8, 80]]}

    until(is_new)


def test_a_replaced_folder_is_reported_and_with_the_flag_served(serve: Serve, base: Path) -> None:
    reporting, reloading = serve().ready(), serve(reload_replaced_versions=True).ready()
    (base / "1").rename(base.parent / "old")
    add_version(base, 1, scale=2)
    until(lambda: reloading.tells({"user": [4]}, {"user": [[8, 80]]}))
    note = reporting.wait_for_log("version needs attention", version=1)["reason"]
    assert "--reload_replaced_versions" in note
    document = reporting.http.get("/v1/statusz").json()
    assert document["models"]["default"]["versions"][0]["note"] == note
    assert {"model": "default", "message": f"version 1: {note}", "alert": ""} in document["attention"]
    assert reporting.lookup({"user": [4]}) == {"user": [[4, 40]]}
    assert versions(reporting)[1] == versions(reloading)[1]
    until(lambda: reloading.http.get("/v1/statusz").json()["attention"] == [])


def test_at_a_cold_start_with_a_broken_newest_version_an_older_one_is_served(serve: Serve, base: Path) -> None:
    broken = add_version(base, 2, scale=2) / "saved_model.pb"
    whole = broken.read_bytes()
    broken.write_bytes(b"no proto")
    server = serve(version_settle_s=0.1).ready()
    assert server.lookup({"user": [4]}) == {"user": [[4, 40]]}
    # While the broken version is tried again, it is in state START for a moment.
    until(lambda: {v: found["state"] for v, found in versions(server).items()} == {1: "AVAILABLE", 2: "END"})
    assert server.wait_for_log("an older version is served")["instead_of"] == 2
    broken.write_bytes(whole)
    until(lambda: server.tells({"user": [4]}, {"user": [[8, 80]]}))


def test_removing_the_newest_version_goes_back(serve: Serve, base: Path) -> None:
    add_version(base, 2, scale=2)
    server = serve().ready()
    assert server.lookup({"user": [1]}) == {"user": [[2, 20]]}
    with SteadyClients(server) as clients:
        until(lambda: clients.counts or clients.wrong)
        shutil.rmtree(base / "2")
        until(lambda: 1 in clients.counts or clients.wrong)
    assert clients.wrong == [] and clients.counts.keys() <= {1, 2}
