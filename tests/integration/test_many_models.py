"""A server with many models has the threads of one, and keeps no metrics of models that were removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.observe.metrics import SHOWN_SCRAPES
from tests.exposition import read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until
from tests.integration.test_models import reload

NUM_MODELS = 60


@pytest.fixture
def entries(tmp_path: Path, base: Path) -> list[dict[str, Any]]:
    """Makes models m0, m1, ... of hard links to one version; returns their entries in a list of models."""
    for number in range(NUM_MODELS):
        shutil.copytree(base / "1", tmp_path / f"m{number}" / "1", copy_function=os.link)
    return [{"name": f"m{number}", "base_path": str(tmp_path / f"m{number}")} for number in range(NUM_MODELS)]


def num_threads(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/task"))


def peak_memory(server: ServerProcess) -> int:
    """Returns the largest resident memory of the server so far, in bytes."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def labelled(server: ServerProcess) -> set[str]:
    """Scrapes the metrics; returns the models that some series names."""
    families = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)
    found = [labels for family in families.values() for labels in family.labelled()]
    return {labels[key] for labels in found for key in ("model", "model_name") if key in labels} - {""}


def test_threads_do_not_grow_with_the_models(serve: Serve, entries: list[dict[str, Any]]) -> None:
    server = serve().ready()
    assert reload(server, *entries[:1]) == ("0", "")
    server.lookup({"user": [1]}, model="m0")
    few = num_threads(server)
    assert reload(server, *entries) == ("0", "")
    for entry in entries:
        assert server.lookup({"user": [1]}, model=entry["name"]) == {"user": [[1, 10]]}
    # The threads of the loads end when they have had no load for some seconds.
    until(lambda: num_threads(server) <= few + 5)
    # All folders are still polled.
    for entry in (entries[0], entries[-1]):
        add_version(Path(entry["base_path"]), 2, scale=2)
        until(lambda name=entry["name"]: server.lookup({"user": [1]}, model=name) == {"user": [[2, 20]]})


def test_the_metrics_of_a_removed_model_end_after_some_scrapes(serve: Serve, entries: list[dict[str, Any]]) -> None:
    server = serve().ready()
    assert reload(server, *entries[:10]) == ("0", "")
    for entry in entries[:10]:
        name = entry["name"]
        server.lookup({"user": [1]}, model=name)
        server.predict_grpc({"user": np.array([1])}, "lookup", model=name)
        with pytest.raises(grpc.RpcError):
            server.predict_grpc({"user": np.array([-1])}, "lookup", model=name)
        # A large request runs on a pool of threads, so that its wait is counted; a wrong one is counted with its code.
        server.lookup({"user": [1] * 50_000}, model=name)
        assert server.http.post(f"/v1/models/{name}/versions/77:predict", json={"inputs": {}}).status_code == 404
    all_ten = {entry["name"] for entry in entries[:10]}
    assert labelled(server) >= all_ten
    assert reload(server, *entries[:1]) == ("0", "")
    assert labelled(server) >= all_ten, "Prometheus gets the last counts"
    for _ in range(SHOWN_SCRAPES + 1):
        found = labelled(server)
    assert found == {"m0"}
    count = ":tensorflow:serving:request_count"
    before = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)[count]
    # A model that comes back counts from zero; the other model's counts go on.
    assert reload(server, *entries[:2]) == ("0", "")
    server.lookup({"user": [1]}, model="m1")
    after = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)[count]
    assert after.value(model_name="m1", status="OK") == 1
    assert after.value(model_name="m0", status="OK") == before.value(model_name="m0", status="OK") == 3


def test_a_saved_model_of_millions_of_empty_messages_is_refused_and_others_load(
    serve: Serve, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    # A message takes two bytes, and was 88 bytes when it was parsed: 120 MB took 5.3 GB.
    large = tmp_path / "large"
    (large / "1").mkdir(parents=True)
    (large / "1" / "saved_model.pb").write_bytes(b"\x12\0" * 60_000_000)
    server = serve(version_settle_s=0, max_num_load_retries=0).ready()
    before = peak_memory(server)
    code, text = reload(server, entries[0], {"name": "large", "base_path": str(large)})
    assert code != "0", text
    failed = server.wait_for_log("load failed", model="large")
    assert "has 120000000 bytes with more than 4000000 protobuf fields" in failed["reason"]
    assert reload(server, *entries[:3]) == ("0", "")
    assert server.lookup({"user": [1]}, model="m2") == {"user": [[1, 10]]}
    # The file itself, in memory once, and what other loads take.
    assert peak_memory(server) - before < 300 << 20
