"""Versions come and go under load; no request fails, and no answer mixes two versions."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.integration.conftest import Serve, add_version
from tests.integration.process import PACE_S, ServerProcess, predict_grpc, stopped, until
from tests.toy_model import SHARD, write_toy_model

FEATURES = {"user": [1, 2, 3, 4], "tags_sum": [[1, 2, 3], [], [3]]}
ANSWER = {"user": [[1, 10], [2, 20], [3, 30], [4, 40]], "tags_sum": [[6, 14, 3], [0, 0, 0], [3, 9, 1]]}


class Load:
    """Clients that ask the same thing over and over.

    scales: which versions answered, by scale. faults: whatever was not a whole answer of one version.
    """

    def __init__(self, server: ServerProcess, num_clients: int = 2) -> None:
        self._server = server
        self._stop = threading.Event()
        self.scales: set[float] = set()
        self.faults: list[Any] = []
        targets = [self._over_http, self._over_grpc]
        self._threads = [threading.Thread(target=self._run, args=(t,)) for t in targets * num_clients]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, target: Any) -> None:
        try:
            target()
        except Exception as error:
            self.faults.append(error)

    def _over_http(self) -> None:
        with httpx.Client(base_url=self._server.http.base_url, timeout=60) as http:
            while not self._stop.wait(PACE_S):
                response = http.post("/v1/models/default:lookup", json={"features": FEATURES})
                if response.status_code != 200:
                    self.faults.append(response.text)
                    return
                answer = response.json()["embeddings"]
                self._check(answer)
                # The scale of each version's rows is the version's number.
                if response.headers["x-model-version"] != str(int(answer["user"][0][0])):
                    self.faults.append((dict(response.headers), answer))

    def _over_grpc(self) -> None:
        inputs = {
            "user": np.array(FEATURES["user"]),
            "tags_sum__values": np.array([1, 2, 3, 3]),
            "tags_sum__row_splits": np.array([0, 3, 3, 4]),
        }
        while not self._stop.wait(PACE_S):
            outputs = predict_grpc(self._server.channel, inputs, "lookup")
            self._check({name: array.tolist() for name, array in outputs.items()})

    def _check(self, answer: Any) -> None:
        scale = answer["user"][0][0]
        for name, rows in ANSWER.items():
            if answer[name] != (scale * np.array(rows)).tolist():
                self.faults.append(answer)
        self.scales.add(scale)


def versions(server: ServerProcess, model: str = "default") -> dict[int, dict[str, Any]]:
    """Returns the status of each version, by number, without versions that ended without an error."""
    statuses = server.http.get(f"/v1/models/{model}").json()["model_version_status"]
    ended = {"error_code": "OK", "error_message": ""}
    return {int(s["version"]): s for s in statuses if (s["state"], s["status"]) != ("END", ended)}


def test_new_versions_are_swapped_in_under_load(serve: Serve, base: Path) -> None:
    server = serve().ready()
    with Load(server) as load:
        for version in range(2, 8):
            until(lambda seen=version - 1: seen in load.scales or load.faults)
            add_version(base, version, scale=version, padding=version)
            until(lambda: list(versions(server)) == [version])  # noqa: B023
        until(lambda: 7 in load.scales or load.faults)
    assert load.faults == []
    assert load.scales == {1, 2, 3, 4, 5, 6, 7}
    metrics = server.http.get("/metrics").text
    assert 'version="7"' in metrics
    assert 'version="1"' not in metrics, "series of versions that are gone"
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert str(base / "7" / SHARD) in maps


def test_a_corrupt_version_leaves_the_old_one_serving(serve: Serve, base: Path) -> None:
    server = serve(max_num_load_retries=0).ready()
    with Load(server, 1) as load:
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
        until(lambda: 3 in load.scales or load.faults)
        until(lambda: sorted(versions(server)) == [2, 3])
    assert load.faults == []
    assert load.scales == {1, 3}


def test_a_model_folder_that_vanishes_keeps_being_served(serve: Serve, base: Path) -> None:
    server = serve(version_settle_s=3600).ready()
    # The folder is empty for a moment. A scan that meets it so unloads nothing.
    shutil.rmtree(base)
    server.wait_for_log("model has no versions")
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
    with Load(server, 1) as load:
        until(lambda: load.scales or load.faults)
        shutil.rmtree(base / "2")
        until(lambda: 1 in load.scales or load.faults)
    assert load.faults == []
