"""A running server has metrics on both wires and both paths, a file that moves them, and no labels made by clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.exposition import Family, read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model
from tests.unit.artifact.test_encodings import record

OWN, DEFAULT = "/metrics", "/monitoring/prometheus/metrics"
LOOKUP = "/v1/models/default:lookup"


def scrape(server: ServerProcess, path: str = DEFAULT) -> dict[str, Family]:
    """Returns the families of metrics on one of the server's pages."""
    response = server.http.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain")
    return read_exposition(response.text)


def series(families: dict[str, Family]) -> set[tuple[str, Any]]:
    """Returns each of the server's metrics as name and labels, without the process's own."""
    return {
        key
        for name, family in families.items()
        if name.startswith((":", "embedding_server_"))
        for key in family.samples
    }


def predict(server: ServerProcess, request: Any) -> None:
    """Sends a PredictRequest over gRPC, or bytes that are no message."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(data, timeout=60)


def test_requests_of_both_wires_are_counted_under_tensorflow_servings_names(serve: Serve) -> None:
    server = serve().ready()
    server.lookup({"user": [1, 2, 3]})
    for ids in ([1], [2, 4]):
        server.predict_grpc({"user": np.array(ids)}, "lookup")
    inputs = {"signature_name": "lookup", "inputs": {"user": [1, 2]}}
    assert server.http.post("/v1/models/default/versions/1:predict", json=inputs).status_code == 200
    assert server.http.post(LOOKUP, json={"features": {"user": [99]}}).status_code == 400
    with pytest.raises(grpc.RpcError):
        server.predict_grpc({"user": np.array([-1])}, "lookup")
    assert server.http.post("/v1/models/default:predict", content=b"{").status_code == 400

    found = scrape(server)
    requests = found[":tensorflow:serving:request_count"]
    assert (requests.kind, requests.value(model_name="default", status="OK")) == ("counter", 4)
    assert requests.value(model_name="default", status="INVALID_ARGUMENT") == 3
    latency = found[":tensorflow:serving:request_latency"]
    counts = {
        (api, entrypoint): latency.value("_count", model_name="default", API=api, entrypoint=entrypoint)
        for api, entrypoint in (("lookup", "REST"), ("predict", "REST"), ("Predict", "GRPC"))
    }
    assert counts == {("lookup", "REST"): 1, ("predict", "REST"): 1, ("Predict", "GRPC"): 2}
    micros = latency.value("_sum", model_name="default", API="Predict", entrypoint="GRPC")
    assert 1 < micros < 120e6, "in microseconds"
    runtime = found[":tensorflow:serving:runtime_latency"]
    assert runtime.value("_count", model_name="default", API="Predict", runtime="lookup") == 2

    of_http = {"api": "http", "model": "default", "signature": "lookup", "version": 1}
    of_grpc = of_http | {"api": "grpc"}
    own = found["embedding_server_requests_total"]
    assert [own.value(**labels, code="OK") for labels in (of_http, of_grpc)] == [2, 2]
    assert [own.value(**labels, code="INVALID_ARGUMENT") for labels in (of_http, of_grpc)] == [1, 1]
    assert found["embedding_server_rows_total"].value(**of_http) == 5
    assert found["embedding_server_rows_total"].value(**of_grpc) == 3
    table = {"model": "default", "table": "user", "version": 1}
    # The requests read 3 + 1 + 2 + 2 rows of two float32, and two ids that are out of range.
    assert found["embedding_server_table_ids_total"].value(**table) == 10
    assert found["embedding_server_table_missing_ids_total"].value(**table) == 2
    assert found["embedding_server_table_read_bytes_total"].value(**table) == 64


def raw_answer(server: ServerProcess, data: bytes) -> bytes:
    """Sends bytes to the HTTP port, and returns what comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_each_request_is_counted_once(serve: Serve) -> None:
    server = serve(admin_port="auto").ready()
    rows = "/v1/models/default/tables/user:rows"
    assert server.http.post(rows, json={"ids": [1, 2]}).status_code == 200
    assert server.http.post(rows, json={"ids": [99]}).status_code == 400
    assert server.http.get("/v1/models/default").status_code == 200
    assert server.http.get("/v1/models/default/metadata").status_code == 200
    assert server.http.get("/v1/models/default/versions/9").status_code == 404
    upsert = f"http://127.0.0.1:{server.admin_port}/v1/models/default/tables/user:upsert"
    assert server.http.post(upsert, json={"ids": [1], "rows": [[1, 2]]}).status_code == 400
    bodies = (b"no gzip", {"Content-Encoding": "gzip"}), (b"x", {"Content-Encoding": "rot13"})
    for body, headers in bodies:
        assert server.http.post(LOOKUP, content=body, headers=headers).status_code == 400
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")(b"\x0a\x03\x0a\x01x", timeout=60)
    assert caught.value.details().endswith("; models: default")  # type: ignore[attr-defined]
    malformed = [
        b"BREW coffee\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"POST /v1/models/default:lookup HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ]
    for data in malformed:
        assert raw_answer(server, data).startswith(b"HTTP/1.1 400 "), data

    found = scrape(server)
    own = found["embedding_server_requests_total"]
    # The kinds of requests, with the wire, the signature, the version and the code that each is counted with.
    counted = {
        (labels["api"], labels["signature"], labels["version"], labels["code"]): own.value(**labels)
        for labels in own.labelled()
    }
    assert counted == {
        ("http", "rows", "1", "OK"): 1,
        ("http", "", "", "INVALID_ARGUMENT"): 3,
    }
    assert found["embedding_server_rows_total"].value(api="http", model="default", signature="rows", version=1) == 2
    control = found["embedding_server_control_requests_total"]
    assert {(one["api"], one["model"], one["code"]): control.value(**one) for one in control.labelled()} == {
        ("http", "default", "OK"): 2,
        ("http", "default", "NOT_FOUND"): 1,
        ("http", "default", "FAILED_PRECONDITION"): 1,
        ("grpc", "", "NOT_FOUND"): 1,
    }
    assert found["embedding_server_connections_dropped_total"].value(reason="malformed") == len(malformed)
    status = server.http.get("/v1/statusz").json()
    failed = {(one["model"], one["code"]): one["requests"] for one in status["recent_failures"]["counts"]}
    assert failed == {
        ("default", "INVALID_ARGUMENT"): 3,
        ("default", "NOT_FOUND"): 1,
        ("default", "FAILED_PRECONDITION"): 1,
        ("", "NOT_FOUND"): 1,
    }


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server for tests that count nothing that another of them counts."""
    with ServerProcess(model_base_path=toy_model, graph_signatures="off") as server:
        yield server.ready()


def test_strings_that_a_vocabulary_lacks_are_counted_by_table(server: ServerProcess) -> None:
    server.lookup({"tags": [["red", "?"], ["!"]]})
    found = scrape(server)
    table = {"model": "default", "table": "tag", "version": 1}
    assert found["embedding_server_table_oov_keys_total"].value(**table) == 2
    assert found["embedding_server_table_ids_total"].value(**table) == 3
    assert found["embedding_server_table_missing_ids_total"].value(**table) == 0, "they have a row, the OOV row"


def test_both_paths_give_one_text(server: ServerProcess) -> None:
    server.lookup({"user": [1]})
    scrape(server)  # A scrape is a control request, and its own series comes with the next one.
    assert series(scrape(server, OWN)) == series(scrape(server, DEFAULT)) != set()
    assert "/metrics" in server.http.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("text", "on", "off"),
    [
        ('prometheus_config { enable: true path: "/x/y" }', [OWN, "/x/y"], [DEFAULT]),
        ("prometheus_config { enable: false }", [], [OWN, DEFAULT]),
    ],
)
def test_a_monitoring_config_file_says_where(
    serve: Serve, tmp_path: Path, text: str, on: list[str], off: list[str]
) -> None:
    config = tmp_path / "monitoring.conf"
    config.write_text(text)
    server = serve(monitoring_config_file=config).ready()
    assert [server.http.get(path).status_code for path in on] == [200] * len(on)
    assert [server.http.get(path).status_code for path in off] == [404] * len(off)


def test_no_request_makes_a_series_of_its_own(server: ServerProcess) -> None:
    server.lookup({"user": [1]})
    server.predict_grpc({"user": np.array([1])}, "lookup")

    def bother(number: int) -> None:
        http = server.http
        name = f"model-{number}"
        for path in (
            *(f"/v1/models/{name}:predict", f"/v1/models/{name}:lookup", f"/v1/models/default:method{number}"),
            *(f"/v1/models/default/versions/{number + 2}:predict", f"/v1/models/default/labels/{name}:lookup"),
            *(f"/{name}", "/v1/models/default/versions/x:predict"),
        ):
            http.post(path, content=b'{"inputs": {"%d": 1}, "signature_name": "lookup"}' % number)
            http.get(path)
        http.post("/v1/models/default:predict", json={"signature_name": name, "inputs": {}})
        http.post("/v1/models/default:lookup", json={"features": {name: [1]}})
        http.post("/v1/models/default:lookup", content=b"\xff" * number)
        http.post("/v1/models/default/tables/" + name + ":rows", json={"ids": [1]})
        http.request("BREW", f"/v1/models/{name}:predict")
        for model, signature in ((name, ""), ("default", name), ("", "")):
            request = message_class("tensorflow.serving.PredictRequest")()
            request.model_spec.name, request.model_spec.signature_name = model, signature
            request.inputs[name].dtype = 1
            with pytest.raises(grpc.RpcError):
                predict(server, request)
        with pytest.raises(grpc.RpcError):
            predict(server, b"\xff" * (number + 1))
        with pytest.raises(grpc.RpcError):
            server.channel.unary_unary(f"/tensorflow.serving.PredictionService/M{number}")(b"", timeout=60)

    bother(0)
    scrape(server)
    before = series(scrape(server))
    for number in range(1, 6):
        bother(number)
    after = series(scrape(server))
    assert after == before
    assert not any("model-" in str(key) for key in after)


def test_counters_under_tensorflow_servings_names_outlive_a_version(serve: Serve, base: Path) -> None:
    server = serve().ready()
    server.lookup({"user": [1]})
    add_version(base, 2)
    states = "embedding_server_version_state"
    until(lambda: [labels["version"] for labels in scrape(server)[states].labelled()] == ["2"])
    server.lookup({"user": [1]})
    found = scrape(server)
    assert found[":tensorflow:serving:request_count"].value(model_name="default", status="OK") == 2
    assert {labels["version"] for labels in found["embedding_server_rows_total"].labelled()} == {"2"}
    assert {labels["version"] for labels in found["embedding_server_table_ids_total"].labelled()} == {"2"}


def test_a_replay_of_recorded_requests_is_shown(serve: Serve, tmp_path: Path) -> None:
    log = message_class("tensorflow.serving.PredictionLog")()
    request = log.predict_log.request
    request.model_spec.signature_name = "lookup"
    request.inputs["user"].dtype = 9
    request.inputs["user"].tensor_shape.dim.add(size=1)
    request.inputs["user"].int64_val.append(3)
    artifact = write_toy_model(tmp_path / "warm" / "1")
    (artifact / "assets.extra" / "tf_serving_warmup_requests").write_bytes(record(log.SerializeToString()) * 2)
    found = scrape(serve(model_base_path=tmp_path / "warm").ready())
    labels = {"model_path": artifact, "status": "OK"}
    assert found[":tensorflow:serving:model_warmup_records_read"].value(**labels) == 2
    assert found[":tensorflow:serving:model_warmup_latency"].value("_count", **labels) == 1
    assert not found[":tensorflow:serving:request_count"].samples, "nobody asked for anything yet"


def test_a_reader_who_never_comes_back_holds_nothing_up(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.http.base_url) as other, other.stream("GET", OWN) as response:
        assert response.status_code == 200
        server.lookup({"user": [1]})
        assert scrape(server)["embedding_server_rows_total"].samples
