"""Graphs that are quick run on the threads of connections, unless these also answer lookups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.graph.library import find_core
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S, ServerProcess, server_of, until

pytestmark = [pytest.mark.tf, pytest.mark.skipif(find_core() is None, reason="the native core is not built")]

# Runs after which the server knows how long a run takes: the first one takes long, and counts less with each run.
_LEARNS = 60


@pytest.fixture(scope="module")
def server(tf: Any, toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a model of lookups, and of model tf, whose signature tiled makes as many numbers as a value says."""
    folder = tmp_path_factory.mktemp("quick")
    module = tf.Module()
    module.kernel = tf.Variable([[2.0], [0.5]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")], autograph=False)
    def dense(x: Any) -> Any:
        return {"y": tf.nn.relu(tf.matmul(x, module.kernel))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "n")], autograph=False)
    def tiled(n: Any) -> Any:
        return {"y": tf.reduce_sum(tf.tile([1.0], n))[None]}

    tf.saved_model.save(module, str(folder / "tf" / "1"), signatures={"dense": dense, "tiled": tiled})
    with server_of({"toy": toy_model, "tf": folder / "tf"}, folder) as server:
        yield server


def _predict(server: ServerProcess, signature: str, instance: object) -> Any:
    body = {"signature_name": signature, "instances": [instance]}
    response = server.http.post("/v1/models/tf:predict", json=body)
    assert response.status_code == 200, response.text
    return response.json()["predictions"]


def _waits(server: ServerProcess) -> float:
    """Returns how many predicts have run on threads for large work."""
    text = httpx.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=PATIENCE_S).text
    return read_exposition(text)["embedding_server_thread_wait_seconds"].value("_count", model="tf")


def _adds_waits(server: ServerProcess, signature: str, instance: object) -> bool:
    before = _waits(server)
    _predict(server, signature, instance)
    return _waits(server) > before


def test_a_quick_graph_runs_on_the_thread_of_its_connection(server: ServerProcess) -> None:
    assert [_predict(server, "dense", [1.0, 2.0]) for _ in range(_LEARNS)] == [[[3.0]]] * _LEARNS
    until(lambda: not _adds_waits(server, "dense", [1.0, 2.0]))
    # Nobody knows yet how long a request of another size takes.
    before = _waits(server)
    response = server.http.post(
        "/v1/models/tf:predict", json={"signature_name": "dense", "instances": [[1.0, 2.0]] * 40}
    )
    assert response.status_code == 200 and _waits(server) == before + 1


def test_a_lookup_does_not_wait_for_graphs(server: ServerProcess) -> None:
    for _ in range(_LEARNS):
        _predict(server, "dense", [1.0, 2.0])
    until(lambda: not _adds_waits(server, "dense", [1.0, 2.0]))
    server.lookup({"user": [1]}, model="toy")
    assert _adds_waits(server, "dense", [1.0, 2.0])
    until(lambda: not _adds_waits(server, "dense", [1.0, 2.0]))


def test_a_graph_that_a_value_can_make_slow_never_does(server: ServerProcess) -> None:
    for _ in range(_LEARNS):
        assert _predict(server, "tiled", 3) == [3.0]
    assert all(_adds_waits(server, "tiled", 3) for _ in range(5))
