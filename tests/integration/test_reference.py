"""The reference server as a process: what it says at the start, what it refuses, and what it serves beside lookups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from embedding_client.client import EmbeddingClient
from service.artifact.protos import message_class
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.toy_model import write_toy_model

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def reference(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a reference server with a low limit on bodies, for tests that change nothing."""
    settings = {"model_base_path": toy_model, "graph_signatures": "off", "max_request_bytes": 1024}
    with ServerProcess(data_plane="reference", **settings) as server:
        yield server.ready()


def test_the_start_says_in_one_line_that_it_is_the_reference_and_in_another_what_has_no_effect(serve: Serve) -> None:
    server = serve(data_plane="reference", max_queue_ms=7, hot_rows="false").ready()
    warnings = [record for record in server.records if record["level"] == "warning"]
    assert [record["message"].partition(":")[0] for record in warnings] == [
        "this is the reference server",
        "flags have no effect on the reference server",
    ]
    assert "many times slower" in warnings[0]["message"] and "pip install" in warnings[0]["reason"]
    assert warnings[1]["flags"] == ["--max_queue_ms", "--hot_rows"]


def test_a_setting_that_it_does_not_keep_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "auth.toml").write_text("")
    server = serve(
        data_plane="reference", auth_config=tmp_path / "auth.toml", enable_batching="true", admin_port="auto"
    )
    assert server.exit_code() == 2
    (reason,) = [record["reason"] for record in server.records if record["message"] == "cannot start"]
    for told in ("callers and rights (--auth_config)", "batching (--enable_batching)", "admin routes (--admin_port)"):
        assert told in reason


def test_a_version_with_deltas_is_not_loaded(serve: Serve, base: Path) -> None:
    (base / "1" / "deltas").mkdir()
    server = serve(data_plane="reference").answering()
    status = server.http.get("/v1/models/default").json()["model_version_status"][0]["status"]
    assert status["error_code"] == "FAILED_PRECONDITION" and "deltas" in status["error_message"]
    assert server.http.get("/readyz").status_code == 503


def test_the_client_is_answered_on_both_wires(reference: ServerProcess) -> None:
    ids = {"user": [1, 2], "tags": [[1], [2, 0]]}
    with (
        EmbeddingClient(f"http://127.0.0.1:{reference.http_port}", model="default") as by_http,
        EmbeddingClient(f"127.0.0.1:{reference.grpc_port}", model="default") as by_grpc,
    ):
        expected = by_grpc.lookup(ids)
        for name, found in by_http.lookup(ids).items():
            np.testing.assert_array_equal(found, expected[name], strict=True)


def test_status_metadata_and_health_on_both_wires(serve: Serve, reference: ServerProcess) -> None:
    with_core = serve().ready()
    for path in ("", "/versions/1", "/versions/9", "/metadata", "/tables", "/labels/none/metadata"):
        expected, found = (one.http.get(f"/v1/models/default{path}") for one in (with_core, reference))
        assert (found.status_code, found.json()) == (expected.status_code, expected.json())
    for path in ("/healthz", "/readyz", "/v1/models/no-such-model"):
        expected, found = (one.http.get(path) for one in (with_core, reference))
        told = {name: value for name, value in expected.json().items() if name != "models"}
        assert (found.status_code, found.json()) == (expected.status_code, told)
    asked = message_class("tensorflow.serving.GetModelStatusRequest")()
    asked.model_spec.name = "default"
    described = message_class("tensorflow.serving.GetModelMetadataRequest")()
    described.model_spec.name = "default"
    described.metadata_field.append("signature_def")
    for path, request in (
        ("/tensorflow.serving.ModelService/GetModelStatus", asked),
        ("/tensorflow.serving.PredictionService/GetModelMetadata", described),
    ):
        expected, found = (
            one.channel.unary_unary(path)(request.SerializeToString(), timeout=PATIENCE_S)
            for one in (with_core, reference)
        )
        assert found == expected
    check = reference.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "tensorflow.serving.PredictionService", "default"):
        assert check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S).status == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check(health_pb2.HealthCheckRequest(service="none"), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_new_versions_are_served_and_a_signal_ends_the_process(serve: Serve, base: Path) -> None:
    server = serve(data_plane="reference").ready()
    write_toy_model(base / "2", scale=3)
    until(lambda: server.lookup({"user": [1]}) == {"user": [[3.0, 30.0]]})
    server.signal(15)
    assert server.exit_code() == 0
    assert server.records[-1]["message"] == "stopped"


def test_bodies_that_are_no_requests_are_refused_and_not_answered_as_unexpected(reference: ServerProcess) -> None:
    for path, body, status in (
        (":lookup", b"", 400),
        (":lookup", b"[]", 400),
        (":lookup", b"{", 400),
        (":lookup", b'{"features": [], "more": 1}', 400),
        (":lookup", b'{"features": {"user": [1]}, "weights": {"tags": [[1]]}}', 400),
        (":lookup", b'{"features": {"user": [1], "user": [2]}}', 400),
        (":lookup", b'{"features": {"none": [1]}}', 400),
        (":lookup", b'{"features": {"user": [1]}, "signature_name": "none"}', 400),
        (":lookup", b" " * 1025, 413),
        (":predict", b"{}", 400),
        (":predict", b'{"instances": [], "inputs": 1}', 400),
        (":predict", b'{"instances": [1, {}]}', 400),
        ("/tables/user:rows", b'{"ids": [true]}', 400),
        ("/tables/user:rows", b'{"ids": [99999999999999999999]}', 400),
        ("/tables/none:rows", b'{"ids": [1]}', 404),
        ("/tables/user:rows", b'{"ids": [1], "labels": 1}', 400),
    ):
        response = reference.http.post(f"/v1/models/default{path}", content=body)
        assert response.status_code == status, (path, body, response.text)
        assert list(response.json()) == ["error"] and response.headers["x-error-code"]
    # As by curl -d, without a type of JSON.
    headers = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"features": {"user": [1]}}).encode()
    assert reference.http.post("/v1/models/default:lookup", content=body, headers=headers).status_code == 200


def test_what_only_the_core_has_is_refused_by_its_name(reference: ServerProcess) -> None:
    table = "/v1/models/default/tables/user"
    for method, path, body, named in (
        ("POST", f"{table}:rows", {"ids": [1], "labels": True}, '"labels" of rows'),
        ("POST", f"{table}:neighbors", {"ids": [1]}, f"{table}:neighbors"),
        ("GET", f"{table}:find", None, f"{table}:find"),
        ("POST", "/v1/models/default:classify", {}, "/v1/models/default:classify"),
        ("GET", "/console", None, "/console"),
        ("GET", "/v2/models/default", None, "/v2/models/default"),
    ):
        response = reference.http.request(method, path, json=body)
        assert (response.status_code, response.headers["x-error-code"]) == (501, "UNIMPLEMENTED"), path
        text = f"The reference server has no {named}: ask a server with the native core."
        assert response.json() == {"error": text}
    unlabelled = reference.http.post(f"{table}:rows", json={"ids": [1], "labels": False})
    assert unlabelled.json() == {"rows": [[1.0, 10.0]]}


def test_fastapi_makes_the_openapi_document_of_the_data_routes(reference: ServerProcess) -> None:
    document = reference.http.get("/openapi.json").json()
    lookup = document["paths"]["/v1/models/{model}:lookup"]["post"]
    (kind,) = lookup["requestBody"]["content"]
    assert kind == "application/json"
    assert lookup["requestBody"]["content"][kind]["schema"] == {"$ref": "#/components/schemas/LookupBody"}
    assert set(document["components"]["schemas"]["LookupBody"]["properties"]) == {
        "features",
        "weights",
        "signature_name",
    }
