"""Searches for nearest rows through a whole server: over both wires and both data planes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from embedding_client import EmbeddingClient
from embedding_client.errors import InvalidRequest, NotFound
from tests.integration.process import DATA_PLANES, ServerProcess
from tests.toy_model import write_toy_model

PATH = "/v1/models/toy/tables/tag:neighbors"


@pytest.fixture(scope="module", params=DATA_PLANES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves the toy model."""
    base = tmp_path_factory.mktemp("toy")
    write_toy_model(base / "1")
    with ServerProcess(
        model_name="toy", model_base_path=base, graph_signatures="off", data_plane=request.param, neighbors_max_k=5
    ) as process:
        yield process.answering()


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3.
def test_http(server: ServerProcess) -> None:
    response = server.http.post(PATH, json={"keys": ["blue"], "k": 2, "metric": "l2", "filter": {"exclude_ids": [2]}})
    assert (response.status_code, response.headers["x-model-version"]) == (200, "1")
    assert response.json() == {"ids": [[1, 0]], "keys": [["red", None]], "scores": [[68.0, 90.0]]}
    response = server.http.post(PATH, json={"ids": [1], "k": 6})
    assert (response.status_code, response.json()) == (400, {"error": '"k" is 6, the limit is 5 per request.'})


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
    server.http.post(PATH, json={"ids": [1, 2]})
    text = server.http.get("/metrics").text
    assert 'embedding_server_neighbor_rows_scanned_total{model="toy"}' in text
    assert 'signature="neighbors"' in text
