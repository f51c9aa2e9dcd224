"""Sends names that are meant to lead to other files to every route and method; checks what browsers are told."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from service.artifact.protos import message_class
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.toy_model import write_toy_model

SECRET = "what-no-client-may-read"
ORIGIN = "https://app.example"
NAMES = [
    "..",
    ".",
    "%2e%2e",
    "%2E%2E%2Fsecret",
    "..%2f..%2fsecret",
    "../secret",
    "..%5c..%5csecret",
    "..\\secret",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "%00",
    "m%00",
    "m%00.txt",
    "m/../m",
    "m%2f..%2fm",
    "%c0%ae%c0%ae",
    "%ff%fe",
    "%ef%bd%8d",
    "m%20",
    "%0d%0aX-Injected:%20yes",
    "~root",
    "$HOME",
    "%25%32%65%25%32%65",
    "a" * 3000,
]
ROUTES = [
    ("POST", "/v1/models/{}:lookup"),
    ("POST", "/v1/models/{}:predict"),
    ("POST", "/v1/models/{}:classify"),
    ("POST", "/v1/models/m/versions/{}:lookup"),
    ("POST", "/v1/models/m/labels/{}:lookup"),
    ("POST", "/v1/models/m/tables/{}:rows"),
    ("POST", "/v1/models/{}/tables/user:rows"),
    ("GET", "/v1/models/{}"),
    ("GET", "/v1/models/{}/metadata"),
    ("GET", "/v1/models/m/versions/{}"),
    ("GET", "/v1/models/m/versions/{}/metadata"),
    ("GET", "/v1/models/m/labels/{}/metadata"),
    ("GET", "/v1/models/{}/tables"),
    ("POST", "/v2/models/{}/infer"),
    ("POST", "/v2/models/m/versions/{}/infer"),
    ("GET", "/v2/models/{}"),
    ("GET", "/v2/models/{}/config"),
    ("GET", "/v2/models/m/versions/{}"),
    ("GET", "/v2/models/m/config?signature_name={}"),
    ("GET", "/docs-assets/{}"),
    ("GET", "/{}"),
    ("GET", "/metrics/{}"),
]
BODIES = {"lookup": {"features": {"user": [1]}}, "rows": {"ids": [1]}, "infer": {"inputs": []}}
# HTTP statuses that refuse a name. ROUTES lacks the status of a label, because the server ignores the label there, as
# TensorFlow Serving does.
_REFUSED = {400, 401, 404, 405}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves model m: version 1 is sound, 2 links to a file outside, 3 names one in its manifest. CORS: ORIGIN only."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "secret").write_text(SECRET)
    base = folder / "models" / "m"
    write_toy_model(base / "1")
    write_toy_model(base / "2")
    tags = base / "2" / "assets" / "tag.txt"
    tags.unlink()
    tags.symlink_to(folder / "secret")

    def look_elsewhere(manifest: dict[str, Any]) -> None:
        for vocabulary in manifest["vocabularies"].values():
            vocabulary["file"] = "assets/../../../../secret"

    write_toy_model(base / "3", edit_manifest=look_elsewhere)
    config = folder / "models.conf"
    every = "model_version_policy { all {} }"
    entry = f'config {{ name: "m" base_path: "{base}" model_platform: "tensorflow" {every} }}'
    config.write_text(f"model_config_list {{ {entry} }}")
    with ServerProcess(
        model_config_file=config,
        graph_signatures="off",
        max_num_load_retries=0,
        rest_api_cors_origins=ORIGIN,
    ) as server:
        server.answering()
        until(lambda: server.http.get("/readyz").status_code == 200)
        yield server


def send(server: ServerProcess, method: str, path: str, name: str) -> tuple[int, str, http.client.HTTPMessage]:
    """Sends a path as it is, without a client's corrections; returns the status, the text and the headers."""
    kind = path.rpartition(":")[2] if ":" in path else path.rpartition("/")[2]
    body = json.dumps(BODIES.get(kind, {"instances": []})) if method == "POST" else None
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    # http.client refuses paths with such bytes; without its check, it sends them as they are.
    connection._validate_path = lambda url: None  # type: ignore[attr-defined]
    connection.request(method, path.format(name), body)
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    connection.close()
    return answer.status, text, answer.headers


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_name_leads_out(server: ServerProcess, method: str, path: str) -> None:
    for name in NAMES:
        status, text, headers = send(server, method, path, name)
        assert status in _REFUSED, (name, status, text)
        assert SECRET not in text and "root:x:" not in text, name
        assert "X-Injected" not in headers
    assert server.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "name", ["..", "../m", "/etc/passwd", "m\0", "\0", "..\\m", "ｍ", "m ", "M", "", "%6d", "a" * 3000]
)
def test_no_name_leads_out_over_grpc(server: ServerProcess, name: str) -> None:
    predict = message_class("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = name
    status = message_class("tensorflow.serving.GetModelStatusRequest")()
    status.model_spec.name = name
    calls = {
        "/tensorflow.serving.PredictionService/Predict": predict,
        "/tensorflow.serving.ModelService/GetModelStatus": status,
        "/inference.GRPCInferenceService/ModelInfer": message_class("inference.ModelInferRequest")(model_name=name),
        "/inference.GRPCInferenceService/ModelMetadata": message_class("inference.ModelMetadataRequest")(name=name),
        "/inference.GRPCInferenceService/ModelConfig": message_class("inference.ModelConfigRequest")(
            name="m", version=name or ".."
        ),
    }
    for path, message in calls.items():
        with pytest.raises(grpc.RpcError) as caught:
            server.channel.unary_unary(path)(message.SerializeToString(), timeout=PATIENCE_S)
        assert caught.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), path


def test_a_version_that_reaches_out_of_its_folder_is_not_served(server: ServerProcess) -> None:
    until(lambda: {one["state"] for one in statuses(server)} == {"AVAILABLE", "END"})
    told = {one["version"]: (one["state"], one["status"]["error_message"]) for one in statuses(server)}
    assert told["1"] == ("AVAILABLE", "")
    assert told["2"] == ("END", "assets/tag.txt is a link out of the model's folder")
    assert told["3"][0] == "END" and "lies outside the artifact" in told["3"][1]
    assert SECRET not in json.dumps([told, server.records])


def statuses(server: ServerProcess) -> Any:
    return server.http.get("/v1/models/m").json()["model_version_status"]


def test_pages_of_listed_origins_may_read_answers_and_no_others(server: ServerProcess) -> None:
    path, body = "/v1/models/m:lookup", BODIES["lookup"]
    # A lookup that the native core answers, one without features, and preflight requests must all have the CORS
    # headers.
    for _ in range(2):
        plain = server.http.post(path, json=body)
        assert plain.status_code == 200 and not allowing(plain.headers)
    for content in (body, {"features": {}}):
        ours = server.http.post(path, json=content, headers={"Origin": ORIGIN})
        assert allowing(ours.headers) == {
            "origin": ORIGIN,
            "methods": "POST, GET",
            "headers": "Authorization, Content-Type, X-Request-Id, traceparent, tracestate, baggage",
        }
        assert ours.headers["vary"] == "Origin"
        for origin in ("https://app.example.evil", "http://app.example", "null", ORIGIN.upper()):
            assert not allowing(server.http.post(path, json=content, headers={"Origin": origin}).headers), origin
    asked = server.http.request("OPTIONS", path, headers={"Origin": ORIGIN, "Access-Control-Request-Method": "POST"})
    assert asked.status_code == 200 and allowing(asked.headers)["origin"] == ORIGIN
    assert not allowing(server.http.request("OPTIONS", path, headers={"Origin": "https://evil.example"}).headers)


def allowing(headers: Any) -> dict[str, str]:
    prefix = "access-control-allow-"
    return {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}


def test_what_a_browser_shows_is_marked(server: ServerProcess) -> None:
    for path in ("/docs", "/openapi.json", "/healthz", "/metrics", "/v1/models/m", "/nothing"):
        headers = server.http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert (headers["x-frame-options"], headers["referrer-policy"]) == ("DENY", "no-referrer"), path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
    policy = server.http.get("/docs").headers["content-security-policy"]
    assert "script-src" in policy and "'sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "content-security-policy" not in server.http.post("/v1/models/m:lookup", json=BODIES["lookup"]).headers
