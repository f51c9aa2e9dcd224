"""Nearest rows over HTTP and gRPC, with an index and the recall that it tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedding_client.client import EmbeddingClient
from embedding_client.errors import InvalidRequest, NotFound
from tests.integration.process import ServerProcess, until
from tests.toy_model import toy_tables, write_toy_model

PATH = "/v1/models/toy/tables/tag:neighbors"
BUILD_SECONDS = "embedding_server_neighbor_index_build_seconds"


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model_name="toy", model_base_path=toy_model, graph_signatures="off") as process:
        yield process.answering()


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3.
def test_http(server: ServerProcess) -> None:
    response = server.http.post(PATH, json={"keys": ["blue"], "k": 2, "metric": "l2", "filter": {"exclude_ids": [2]}})
    assert (response.status_code, response.headers["x-model-version"]) == (200, "1")
    assert response.json() == {"ids": [[1, 0]], "keys": [["red", None]], "scores": [[68.0, 90.0]]}
    response = server.http.post(PATH, json={"ids": [1], "k": 1001})
    assert (response.status_code, response.json()) == (400, {"error": '"k" is 1001, the limit is 1000 per request.'})


def test_grpc_with_the_client_of_predict(server: ServerProcess) -> None:
    with EmbeddingClient(f"127.0.0.1:{server.grpc_port}", model="toy", timeout_s=20) as client:
        table = np.array(b"tag", object)
        found = client.predict({"table": table, "vectors": np.ones((1, 3), np.float32), "k": 2}, signature="neighbors")
        assert found.version == 1 and found["ids"].tolist() == [[3, 2]] and found["scores"].tolist() == [[13.0, 7.0]]
        assert found["keys"].tolist() == [[b"blue", b"green"]]
        with pytest.raises(InvalidRequest, match="send one of"):
            client.predict({"table": table}, signature="neighbors")
        with pytest.raises(NotFound, match="Tables: tag, user"):
            client.predict({"table": np.array(b"film", object), "ids": np.array([1])}, signature="neighbors")


def test_metrics(server: ServerProcess) -> None:
    server.http.post(PATH, json={"ids": [1, 2], "k": 2})
    text = server.http.get("/metrics").text
    assert 'embedding_server_neighbor_rows_scanned_total{model="toy"}' in text
    assert 'signature="neighbors"' in text


def test_an_index_is_built_beside_requests_and_tells_its_recall(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(6000, 3)).astype(np.float32)

    def edit(manifest: dict[str, Any]) -> None:
        manifest["tables"]["tag"]["vocabulary_size"] = 6000

    write_toy_model(tmp_path / "toy" / "1", tables=toy_tables() | {"tag": rows}, edit_manifest=edit)
    with ServerProcess(
        model_name="toy",
        model_base_path=tmp_path / "toy",
        graph_signatures="off",
        neighbors_index_rows=5000,
        neighbors_index_dir=tmp_path / "kept",
    ) as server:
        server.answering()
        asked = {"vectors": [[0.1, 0.2, 0.3]], "k": 3, "metric": "l2"}
        exact = server.http.post(PATH, json=asked | {"exact": True}).json()
        expected = np.argsort(np.square(rows - np.array([0.1, 0.2, 0.3])).sum(axis=1))[:3].tolist()
        assert exact["ids"] == [expected] and "recall" not in exact
        until(lambda: "recall" in server.http.post(PATH, json=asked).json())
        found = server.http.post(PATH, json=asked).json()
        assert found["recall"] >= 0.95 and found["scores"] == exact["scores"] and found["ids"] == exact["ids"]
        assert server.http.post(PATH, json=asked | {"exact": True}).json() == exact
        with EmbeddingClient(f"127.0.0.1:{server.grpc_port}", model="toy", timeout_s=20) as client:
            inputs = {"table": np.array(b"tag", object), "vectors": np.array(asked["vectors"], np.float32), "k": 3}
            for exact_too in ({}, {"exact": np.array(True)}):
                more = {"metric": np.array(b"l2", object)} | exact_too
                assert client.predict(inputs | more, signature="neighbors")["ids"].tolist() == [expected]
        text = server.http.get("/metrics").text
        told = 'model="toy",version="1",table="tag",metric="l2"'
        assert f"embedding_server_neighbor_index_recall{{{told}}} " in text
        assert f"embedding_server_neighbor_index_bytes{{{told}}} " in text
        (took,) = (line for line in text.splitlines() if line.startswith(f"{BUILD_SECONDS}{{{told}}} "))
    with ServerProcess(
        model_name="toy",
        model_base_path=tmp_path / "toy",
        graph_signatures="off",
        neighbors_index_rows=5000,
        neighbors_index_dir=tmp_path / "kept",
    ) as server:
        server.answering()
        until(lambda: "recall" in server.http.post(PATH, json=asked).json())
        assert server.http.post(PATH, json=asked).json() == found
        # The server read the index from its file: the metrics show the time of the first build.
        assert took in server.http.get("/metrics").text.splitlines()
