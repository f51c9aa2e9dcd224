"""Server processes load nothing of TensorFlow for lookups, and its library but no table for predicts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedding_client.client import EmbeddingClient
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ServerProcess

pytestmark = [pytest.mark.tf, pytest.mark.core]

ROWS, DIM = 150_000, 64
TABLE_BYTES = ROWS * DIM * 4
SERVE = "serving_default"


def libraries(server: ServerProcess) -> set[str]:
    """Returns the names of TensorFlow's libraries that a server has mapped."""
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    return {name for name in ("libtensorflow_cc", "_pywrap_tensorflow") if name in maps}


def own_bytes(server: ServerProcess) -> int:
    """Returns the bytes of a server's memory that are no pages of files."""
    lines = Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) << 10


def item_model(tf: Any, folder: Path, *, has_score: bool) -> Path:
    """Writes a model that looks items up by id in a table of 38 MB; has_score: and one that scores them by a layer."""
    module = tf.Module()
    module.item = tf.Variable(np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM) % 97, name="item")
    module.layer = tf.Variable(np.arange(DIM, dtype=np.float32)[:, None], name="layer")
    ids = tf.TensorSpec([None], tf.int64, "ids")
    found = {SERVE: lambda ids: {"rows": tf.gather(module.item, ids)}}
    if has_score:
        found["score"] = lambda ids: {"score": tf.matmul(tf.gather(module.item, ids), module.layer)}
    signatures = {name: tf.function(f, input_signature=[ids], autograph=False) for name, f in found.items()}
    tf.saved_model.save(module, str(folder / "saved"), signatures=signatures)
    return folder / "saved"


@pytest.fixture(scope="module")
def items(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that makes a model folder: with only lookups, or with a score too, adopted or as TensorFlow
    wrote it.
    """
    from model_export.adoption.adopt import adopt

    folder = tmp_path_factory.mktemp("items")
    saved = {name: item_model(tf, folder / name, has_score=name == "score") for name in ("lookups", "score")}
    for name, path in saved.items():
        adopt(path, out=folder / name / "adopted", measure=False)
    shutil.copytree(saved["score"], folder / "score" / "graph" / "1")
    return lambda name: folder / name


def score(server: ServerProcess, ids: list[int]) -> Any:
    """Returns the scores that a server predicts for items."""
    body = {"signature_name": "score", "inputs": {"ids": ids}}
    answer = server.http.post("/v1/models/default:predict", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]


def scores(ids: list[int]) -> list[list[float]]:
    """Computes the scores of items, whose sums of small integers are exact."""
    rows = (np.array(ids)[:, None] * DIM + np.arange(DIM)) % 97
    return [[float(score)] for score in rows @ np.arange(DIM)]


def test_a_model_of_lookups_loads_no_tensorflow_and_copies_no_table(serve: Serve, items: Callable[[str], Path]) -> None:
    own = {}
    for choice in ("auto", "off"):
        server = serve(model_base_path=items("lookups/adopted"), graph_signatures=choice).ready()
        body = {"inputs": {"ids": [3, 1]}}
        for _ in range(2):
            rows = server.http.post("/v1/models/default:predict", json=body).json()["outputs"]
        assert [row[0] for row in rows] == [3 * DIM % 97, DIM]
        assert libraries(server) == set()
        own[choice] = own_bytes(server)
        # No request can run the signature that initializes the graph, so only GetModelMetadata shows it.
        metadata = server.http.get("/v1/models/default/metadata").json()["metadata"]["signature_def"]["signature_def"]
        assert set(metadata) == {SERVE, "__saved_model_init_op"}
        for target in (f"http://127.0.0.1:{server.http_port}", f"grpc://127.0.0.1:{server.grpc_port}"):
            with EmbeddingClient(target, model="default", timeout_s=PATIENCE_S) as client:
                assert set(client.metadata().signatures) == {SERVE}
        assert "__saved_model_init_op" not in server.http.get("/v1/statusz").text
        assert "__saved_model_init_op" not in json.dumps(server.records)
    assert abs(own["auto"] - own["off"]) < TABLE_BYTES / 4, own


def test_a_predict_behind_lookups_loads_the_library_and_no_table(serve: Serve, items: Callable[[str], Path]) -> None:
    own = {}
    for signatures in ("auto", "whole"):
        server = serve(model_base_path=items("score/adopted"), graph_signatures=signatures).ready()
        assert score(server, [3, 0, ROWS - 1]) == scores([3, 0, ROWS - 1])
        assert libraries(server) == {"libtensorflow_cc"}
        own[signatures] = own_bytes(server)
        assert server.http.get("/v1/statusz").json()["models"]["default"]["versions"][0]["not_run"] == {}
    # The whole graph restores the table into memory, the graph without its lookups only its layer.
    assert own["whole"] - own["auto"] > TABLE_BYTES / 2, own


@pytest.mark.parametrize("flags", [(), ("--enable_batching",)], ids=["alone", "batched"])
def test_a_lazy_graph_loads_the_library_at_its_first_request(
    serve: Serve, items: Callable[[str], Path], flags: tuple[str, ...]
) -> None:
    # The first requests wait while the graph is opened, which may take long on a busy machine.
    patient = {"max_queue_ms": 60_000, "rest_api_timeout_in_ms": 120_000}
    server = serve(*flags, model_base_path=items("score/adopted"), graph_signatures="lazy", **patient).ready()
    assert server.http.post("/v1/models/default:predict", json={"inputs": {"ids": [3]}}).status_code == 200
    assert libraries(server) == set()
    before = server.http.get("/v1/statusz").json()["data_plane"]["forwarded"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: score(server, [number]), range(8)))
    assert found == [scores([number]) for number in range(8)]
    assert libraries(server) == {"libtensorflow_cc"}
    status = server.http.get("/v1/statusz").json()
    # The core forwarded nothing but this request.
    assert status["data_plane"]["forwarded"] == {"grpc": before["grpc"], "http": before["http"] + 1}
    assert status["models"]["default"]["versions"][0]["not_run"] == {}


def test_a_lazy_graph_that_can_not_be_opened_fails_requests_until_it_can(
    serve: Serve, items: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(items("score/graph") / "1", tmp_path / "m" / "1")
    index = tmp_path / "m" / "1" / "variables" / "variables.index"
    server = serve(model_base_path=tmp_path / "m", graph_signatures="lazy").ready()
    index.rename(index.with_suffix(".gone"))
    body = {"signature_name": "score", "inputs": {"ids": [3]}}
    for _ in range(2):
        answer = server.http.post("/v1/models/default:predict", json=body)
        assert answer.status_code == 500
        text = "The graph of this signature can not be loaded; the server's log has the cause. Request id: "
        assert answer.json()["error"].startswith(text)
    failed = server.wait_for_log(f"request failed: {text.removesuffix(' Request id: ')!a}")
    assert "TensorFlow can not load" in failed["reason"]
    index.with_suffix(".gone").rename(index)
    assert score(server, [3]) == scores([3])


def test_a_model_that_nobody_adopted_is_run_without_the_python_package(
    serve: Serve, items: Callable[[str], Path]
) -> None:
    server = serve(model_base_path=items("score/graph"), graph_signatures="auto").ready()
    assert score(server, [3, 0, ROWS - 1]) == scores([3, 0, ROWS - 1])
    assert libraries(server) == {"libtensorflow_cc"}
