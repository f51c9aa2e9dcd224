"""Starts models with lookups and predicts: when ports open, and which requests are answered before TensorFlow."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.artifact.protos import message_class
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import PACE_S, ServerProcess, environment, until, unused_ports, write_models
from tests.toy_model import rewrite_manifest

pytestmark = pytest.mark.tf
SHOWN = "lookups are answered while the version is LOADING"
LOADING = "version 1 is LOADING, and only its lookups are answered"
USER_1 = {"user": [[2.0, 3.0]]}
# Code that the server runs first: it makes the import of the module that opens graphs wait until a file exists. The
# wait is not in find_spec, in which Python holds the lock of all imports.
HOLD = """
import importlib.machinery, os, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name != "service.loading.graph_opening":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def run_later(module):
            while not os.path.exists({file!r}):
                time.sleep(0.01)
            run(module)

        spec.loader.exec_module = run_later
        return spec

sys.meta_path.insert(0, Hold())
"""


@pytest.fixture
def models(tower_version: Path, tmp_path: Path) -> Path:
    """Copies a version with lookups and predicts into a model folder that tests may change."""
    shutil.copytree(tower_version, tmp_path / "towers" / "1")
    return tmp_path / "towers"


@pytest.fixture
def let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes servers started from now on wait before they open graphs; returns a function that lets them go on."""
    folder, file = tmp_path / "hold", tmp_path / "go"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOLD.format(file=str(file)))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{environment().get('PYTHONPATH', '')}")
    return file.touch


def break_graph(version: Path, *, mend: bool = False) -> None:
    """Adds an operation that TensorFlow does not know to a version's graph; mend: removes it again."""
    path = version / "saved_model.pb"
    message = message_class("tensorflow.SavedModel").FromString(path.read_bytes())
    nodes = message.meta_graphs[0].graph_def.node
    if mend:
        assert nodes.pop().op == "NoSuchOperation"
    else:
        nodes.add(name="unknown", op="NoSuchOperation")
    path.write_bytes(message.SerializeToString())

    def edit(manifest: dict[str, Any]) -> None:
        manifest["files"]["saved_model.pb"] = path.stat().st_size

    rewrite_manifest(version, edit)


def lookup(server: ServerProcess, version: str = "") -> tuple[int, Any]:
    """Looks up the row of user 1; returns the status, and the embeddings or the error."""
    answer = server.http.post(f"/v1/models/default{version}:lookup", json={"features": {"user": [1]}})
    return answer.status_code, answer.json().get("embeddings") or answer.json()["error"]


def predict(server: ServerProcess, model: str = "default") -> tuple[int, Any]:
    """Predicts with a signature of the graph for user 1; `model` may end with the path of a version."""
    answer = server.http.post(
        f"/v1/models/{model}:predict", json={"signature_name": "rows", "instances": [{"user": 1}]}
    )
    return answer.status_code, answer.json().get("predictions") or answer.json()["error"]


def states(server: ServerProcess) -> dict[int, str]:
    """Returns the state of each version of the model, by number."""
    answer = server.http.get("/v1/models/default").json()
    return {int(status["version"]): status["state"] for status in answer["model_version_status"]}


def looked_up(server: ServerProcess) -> float:
    """Returns how many ids of the table "user" the metrics have counted."""
    family = read_exposition(server.http.get("/metrics").text)["embedding_server_table_ids_total"]
    return sum(value for (_, labels), value in family.samples.items() if ("table", "user") in labels)


def test_lookups_are_answered_before_graphs_are_opened_and_predicts_when_they_are(
    serve: Serve, models: Path, let_go: Callable[[], None]
) -> None:
    server = serve(model_base_path=models, graph_signatures="auto", first_loads_timeout_s=3600).answering()
    assert lookup(server) == lookup(server, "/versions/1") == (200, USER_1)
    # TensorFlow's library is loaded before the graphs need it.
    until(lambda: "libtensorflow" in Path(f"/proc/{server.pid}/maps").read_text())
    assert states(server) == {1: "LOADING"}
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, {"default": LOADING})
    # While a version is LOADING, a predict gets the error of a version that is not loaded.
    assert predict(server) == (503, f'Model "default" is not ready: {LOADING}')
    assert predict(server, "default/versions/1") == (404, "Servable not found for request: Specific(default, 1)")
    assert server.http.get("/v1/models/default/metadata").status_code == 503
    assert server.http.get("/v2/models/default/ready").status_code == 503
    assert server.http.post("/v1/models/default/tables/user:rows", json={"ids": [1]}).status_code == 200
    let_go()
    until(lambda: states(server) == {1: "AVAILABLE"})
    # The two lookups that were answered while the graph was loading are counted.
    assert looked_up(server) == 2
    assert lookup(server) == (200, USER_1)
    assert looked_up(server) == 3
    assert predict(server) == (200, USER_1["user"])
    assert server.http.get("/readyz").status_code == 200


def test_a_version_that_fails_answers_no_more_and_a_second_one_is_published_whole_or_not_at_all(
    serve: Serve, models: Path, tmp_path: Path, let_go: Callable[[], None]
) -> None:
    break_graph(models / "1")
    server = serve(
        model_base_path=models,
        graph_signatures="auto",
        max_num_load_retries=1,
        load_retry_interval_micros=0,
        first_loads_timeout_s=3600,
    ).answering()
    assert lookup(server) == (200, USER_1)
    let_go()
    server.wait_for_log("load failed", attempt=2)
    until(lambda: states(server) == {1: "END"})
    # The core learns of the state after Python has it.
    until(lambda: lookup(server)[1].startswith('Model "default" is not ready: version 1 is END: '))
    assert lookup(server)[0] == 503
    # The lookups are not offered once more at each further attempt to load the graph.
    assert len([record for record in server.records if record["message"] == SHOWN]) == 1
    draft = shutil.copytree(models / "1", tmp_path / "draft")
    break_graph(draft, mend=True)
    draft.rename(models / "2")
    until(lambda: predict(server) == (200, USER_1["user"]))
    # While version 2 serves, the server answers no lookup from version 3, which is LOADING.
    draft = shutil.copytree(models / "2", tmp_path / "draft")
    break_graph(draft)
    draft.rename(models / "3")
    seen = set()
    # Between its two attempts, version 3 is END too.
    last = {"message": "load failed", "version": 3, "attempt": 2}
    while not any(last.items() <= record.items() for record in server.records.copy()):
        seen.add((lookup(server, "/versions/3")[0], lookup(server)[0], predict(server)[0]))
        time.sleep(PACE_S)
    # The set is empty if both attempts failed before the first look.
    assert seen <= {(404, 200, 200)}
    until(lambda: states(server).items() >= {3: "END", 2: "AVAILABLE"}.items())
    assert (lookup(server), predict(server)) == ((200, USER_1), (200, USER_1["user"]))
    assert [record for record in server.records if record["message"] == SHOWN and record["version"] == 3] == []


def test_ports_open_when_each_model_can_answer_and_the_end_does_not_wait_for_that(
    serve: Serve, models: Path, tmp_path: Path, let_go: Callable[[], None]
) -> None:
    # Without its manifest, a version has no lookups that could be answered before the graph is loaded.
    graphs = shutil.copytree(models, tmp_path / "graphs")
    shutil.rmtree(graphs / "1" / "assets.extra")
    http_port, grpc_port = unused_ports(2)
    given: dict[str, Any] = {"graph_signatures": "auto"}
    given |= {"rest_api_port": http_port, "port": grpc_port, "version_settle_s": 0}

    def is_open(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    server = serve(**given, model_base_path=graphs, first_loads_timeout_s=3600)
    server.wait_for_log("models")
    assert not is_open(http_port) and not is_open(grpc_port)
    server.signal(signal.SIGTERM)
    server.wait_for_log("stopped")
    assert not [record for record in server.records if record["message"] == "listening"]
    server.signal(signal.SIGTERM)
    server.exit_code()
    at_once = serve(**given, model_base_path=graphs, first_loads_timeout_s=0).answering()
    assert is_open(http_port) and is_open(grpc_port)
    until(lambda: lookup(at_once) == (503, 'Model "default" is not ready: version 1 is LOADING'))
    assert states(at_once) == {1: "LOADING"}
    at_once.signal(signal.SIGKILL)
    at_once.exit_code()
    listed = write_models(tmp_path, {"default": models, "graph": graphs})
    given |= {"model_base_path": "", "model_config_file": listed}
    server = serve(**given, first_loads_timeout_s=3600)
    server.wait_for_log("models")
    assert not is_open(http_port) and not is_open(grpc_port)
    let_go()
    # The port opens when "graph" has loaded; "default" has answered its lookups from before.
    assert lookup(server.answering()) == (200, USER_1)
    until(lambda: states(server) == {1: "AVAILABLE"})
    assert predict(server) == predict(server, "graph") == (200, USER_1["user"])
