"""A server compares versions over HTTP, and --max_drift keeps a drifted version from being served."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.versions_to_compare import random_rotation, random_rows, write_version

NUM_ROWS = 200
OLD = random_rows(NUM_ROWS, 1, 2)
ROTATED = (OLD @ random_rotation(2, 2)).astype(np.float32)
DIFF = "/v1/models/default/versions/{}:diff?to={}"


def publish(base: Path, version: int, rows: np.ndarray) -> None:
    """Writes a version beside the base path, and moves it there in one step."""
    draft = write_version(base.parent / f"draft{version}", rows)
    base.mkdir(exist_ok=True)
    shutil.move(draft, base / str(version))


def test_versions_are_compared_whether_or_not_they_are_loaded(serve: Serve, tmp_path: Path) -> None:
    base = tmp_path / "models"
    publish(base, 1, OLD)
    publish(base, 2, ROTATED)
    server = serve(model_base_path=base).ready()
    response = server.http.get(DIFF.format(1, 2))
    assert response.status_code == 200
    found = response.json()
    assert (found["model"], found["old"], found["new"], found["drift_percent"]) == ("default", "1", "2", 0)
    assert {table["table"] for table in found["tables"]} == {"tag", "user"}
    # The second answer comes from a cache: the versions are compared once.
    assert server.http.get(DIFF.format(1, 2)).json() == found
    server.wait_for_log("compared versions")
    assert len([entry for entry in server.records if entry["message"] == "compared versions"]) == 1
    for path, status, text in (
        (DIFF.format(1, 9), 404, "no folder of version 9. Versions: 1, 2."),
        (DIFF.format(1, "x"), 400, "Failed to convert version: x to numeric."),
        ("/v1/models/default/versions/1:diff", 400, "Name the version to compare with"),
        ("/v1/models/absent/versions/1:diff?to=2", 404, "Could not find any versions of model absent"),
    ):
        response = server.http.get(path)
        assert response.status_code == status and text in response.json()["error"], path


def test_a_drifted_version_is_refused_and_the_old_one_serves(serve: Serve, tmp_path: Path) -> None:
    base = tmp_path / "models"
    publish(base, 1, OLD)
    server = serve(model_base_path=base, max_drift=20).ready()
    # Version 3 has random rows that are unlike those of version 1.
    publish(base, 3, random_rows(NUM_ROWS, 5, 2))

    def statuses() -> dict[str, tuple[str, str]]:
        listed = server.http.get("/v1/models/default").json()["model_version_status"]
        return {entry["version"]: (entry["state"], entry["status"]["error_message"]) for entry in listed}

    until(lambda: statuses().get("3", ("", ""))[0] == "END")
    state, why = statuses()["3"]
    assert 'The version drifted (--max_drift=20): table "user": ' in why and "to version 1 after alignment" in why
    assert statuses()["1"][0] == "AVAILABLE"
    shutil.rmtree(base / "3")
    # Version 2 has the rows of version 1, rotated: after alignment, they have not drifted.
    publish(base, 2, ROTATED)
    until(lambda: statuses().get("2", ("", ""))[0] == "AVAILABLE")
    # --max_drift does not judge a return to an older version.
    shutil.rmtree(base / "2")
    until(lambda: statuses()["1"][0] == "AVAILABLE")


@pytest.fixture
def two_versions(serve: Serve, tmp_path: Path) -> ServerProcess:
    """Serves two versions: in the second, the rows of users are turned, and the last two were exchanged."""
    base = tmp_path / "models"
    publish(base, 1, OLD)
    publish(base, 2, ROTATED[[*range(NUM_ROWS - 2), NUM_ROWS - 1, NUM_ROWS - 2]])
    return serve(model_base_path=base).ready()


def layer(server: ServerProcess, path: str) -> httpx.Response:
    """Requests a layer of a map until it is computed; returns the answer."""
    found: list[httpx.Response] = []

    def is_there() -> bool:
        found[:] = [server.http.get(f"/v1/models/default/versions/2/tables/{path}")]
        return found[0].status_code != 202

    until(is_there)
    return found[0]


def test_the_points_of_a_map_have_drift_and_keys(two_versions: ServerProcess) -> None:
    ids = layer(two_versions, "user:projection").json()["ids"]
    found = layer(two_versions, "user:drift?from=1").json()
    assert (found["version"], found["from"], found["is_aligned"]) == (2, 1, True)
    assert len(found["values"]) == len(ids) == NUM_ROWS
    turned = OLD[-2:] @ OLD[-2:].T / np.linalg.norm(OLD[-2:], axis=1) / np.linalg.norm(OLD[-2:], axis=1)[:, None]
    assert found["values"][:-2] == pytest.approx([0] * (NUM_ROWS - 2), abs=0.02)
    assert found["values"][-2:] == pytest.approx([1 - turned[0, 1]] * 2, abs=0.2)
    tags = layer(two_versions, "tag:names").json()
    names = [None, "key0", "key1", "key2"]
    assert (tags["version"], tags["labels"]) == (2, names) and all(keys == names for keys in tags["keys"].values())
    for path, status, text in (
        ("none:names", 404, "has no table"),
        ("user:drift?from=9", 404, "no folder of version 9"),
    ):
        answer = layer(two_versions, path)
        assert answer.status_code == status and text in answer.json()["error"], path
