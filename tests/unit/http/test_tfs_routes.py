"""TensorFlow Serving's REST API has its routes, its answers, and its texts for errors."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from service.engine.engine import Engine
from service.engine.registry import Registry
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import Http, NumpyModel, error_text

PREDICT = "/v1/models/m:predict"


@pytest.mark.parametrize("where", ["", "/versions/3", "/versions/003"])
def test_predict_by_row_and_by_column(http: Http, where: str) -> None:
    response = http.post(f"/v1/models/m{where}:predict", json={"instances": [1, 2.5]})
    assert response.json() == {"predictions": [{"y": 3.0, "z": 1}, {"y": 6.0, "z": 2}]}
    assert response.headers["content-type"] == "application/json"
    response = http.post(f"/v1/models/m{where}:predict", json={"inputs": {"x": [1]}})
    assert response.json() == {"outputs": {"y": [3.0], "z": [1]}}


def test_lookups_answer_over_predict_too(http: Http) -> None:
    body = {"signature_name": "lookup", "instances": [{"user": 1, "tags": [0, 1]}, {"user": 0, "tags": []}]}
    assert http.post(PREDICT, json=body).json() == {
        "predictions": [{"user": [2.0, 3.0], "tags": [2.0, 4.0]}, {"user": [0.0, 1.0], "tags": [0.0, 0.0]}]
    }
    assert http.post(PREDICT, json={"signature_name": "lookup", "inputs": {"user": [1]}}).json() == {
        "outputs": [[2.0, 3.0]]
    }


def test_bare_tokens_go_both_ways(http: Http) -> None:
    response = http.post(PREDICT, content=b'{"signature_name": "", "instances": [NaN, Infinity]}')
    assert response.status_code == 200
    assert b"Infinity" in response.content and b"NaN" in response.content


def test_a_gzip_body_is_decoded(http: Http) -> None:
    body = gzip.compress(json.dumps({"inputs": [1]}).encode())
    response = http.post(PREDICT, content=body, headers={"Content-Encoding": "gzip"})
    assert response.json()["outputs"]["y"] == [3.0]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "JSON Parse error: The document is empty"),
        (b"{}", 400, "Missing 'inputs' or 'instances' key"),
        (b'{"signature_name": "s", "inputs": 1}', 400, 'Serving signature name: "s" not found in signature def'),
        (
            b'{"signature_name": "\\"{}", "inputs": 1}',
            400,
            'Serving signature name: ""{}" not found in signature def',
        ),
        (b'{"inputs": {}}', 400, "Missing named input: x in 'inputs' object."),
        (b'{"inputs": [true]}', 400, "JSON Value: true Type: True is not of expected type: float"),
        (b"[" * 4000, 400, "JSON Parse error: Invalid value. at offset: 4000"),
    ],
)
def test_a_bad_predict(http: Http, body: bytes, status: int, text: str) -> None:
    response = http.post(PREDICT, content=body)
    assert response.status_code == status
    assert error_text(response).startswith(text)


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/v1/models/nobody:predict", 404, "Servable not found for request: Latest(nobody)"),
        ("POST", "/v1/models/m/versions/9:predict", 404, "Servable not found for request: Specific(m, 9)"),
        ("POST", "/v1/models/m/labels/stable:predict", 400, "Unrecognized servable version label: stable"),
        ("POST", "/v1/models/m/versions/x:predict", 400, "Malformed request: POST /v1/models/m/versions/x:predict"),
        ("POST", "/v1/models/m/versions/-1:predict", 400, "Malformed request: POST /v1/models/m/versions/-1:predict"),
        ("POST", f"/v1/models/m/versions/{2**63}:predict", 400, f"Failed to convert version: {2**63} to numeric."),
        ("POST", "/v1/models/m:unknown", 400, "Malformed request: POST /v1/models/m:unknown"),
        ("GET", "/v1/models/m:predict", 400, "Malformed request: GET /v1/models/m:predict"),
        ("PUT", "/v1/models/m", 400, "Malformed request: PUT /v1/models/m"),
        ("DELETE", "/v1/models/m:predict", 400, "Malformed request: DELETE /v1/models/m:predict"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/nothing?x=1", 400, "Malformed request: GET /v1/nothing"),
        ("GET", "/v1/models/m%0A/x", 400, "Malformed request: GET /v1/models/m%0A/x"),
        ("GET", "/v1", 404, "Not found: /v1"),
        ("GET", "/nothing", 404, "Not found: /nothing"),
        ("GET", "/v1/models/nobody", 404, "Could not find any versions of model nobody"),
        ("GET", "/v1/models/m/versions/9", 404, "Could not find version 9 of model m"),
        ("GET", "/v1/models/nobody/metadata", 404, "Servable not found for request: Latest(nobody)"),
        ("GET", "/v1/models/m/labels/stable/metadata", 400, "Unrecognized servable version label: stable"),
        ("POST", "/V1/Models/m/VERSIONS/9:predict", 404, "Servable not found for request: Specific(m, 9)"),
        ("POST", "/v1/models/a%2Fb%3A:predict", 404, "Servable not found for request: Latest(a/b:)"),
        ("GET", "/v1/models/m/labels/a%2Fb/metadata", 400, "Unrecognized servable version label: a/b"),
        ("GET", "/v1/models/labels/x", 400, "Missing model name in request."),
    ],
)
def test_paths_and_methods(http: Http, method: str, path: str, status: int, text: str) -> None:
    response = http(method, path, content=b'{"inputs": [1]}' if method == "POST" else b"")
    assert (response.status_code, error_text(response)) == (status, text)


def test_a_name_is_percent_decoded(http: Http, registry: Registry) -> None:
    registry.add_model("a b")
    response = http.get("/v1/models/a%20b/metadata")
    assert (response.status_code, error_text(response)) == (
        503,
        'Model "a b" is not ready: its folder has not been read yet',
    )


@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m/versions/3", "/v1/models/m/labels/any"])
def test_status(http: Http, path: str) -> None:
    version: dict[str, Any] = {"version": "3", "state": "AVAILABLE"}
    version["status"] = {"error_code": "OK", "error_message": ""}
    assert http.get(path).json() == {"model_version_status": [version]}


@pytest.mark.parametrize("path", ["/v1/models/m/metadata", "/v1/models/m/versions/3/metadata"])
def test_metadata(http: Http, path: str) -> None:
    document = http.get(path).json()
    assert document["model_spec"] == {"name": "m", "signature_name": "", "version": "3"}
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"lookup", "serving_default"}
    assert signatures["serving_default"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "x:0",
    }


def test_head_and_options(http: Http) -> None:
    head = http("HEAD", "/v1/models/m")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    options = http("OPTIONS", PREDICT)
    assert (options.status_code, options.headers["allow"]) == (204, "POST, OPTIONS")


def test_requests_are_counted_also_where_they_never_reach_a_model(http: Http, observer: RecordingObserver) -> None:
    http.post(PREDICT, json={"instances": [1, 2]})
    http.post(PREDICT, content=b"{")
    http.post("/v1/models/nobody:predict", json={"inputs": 1})
    kept = [
        (r["api"], r["model"], r["version"], r["signature"], r["rows"], r["error"] and r["error"].code)
        for r in observer.finished_requests
    ]
    assert {r["method"] for r in observer.finished_requests} == {"predict"}
    assert kept == [
        ("http", "m", 3, "serving_default", 2, None),
        ("http", "m", None, "", 0, "INVALID_ARGUMENT"),
        ("http", "", None, "", 0, "NOT_FOUND"),
    ]


def test_a_fault_of_the_model_hides_its_cause(http: Http, model: NumpyModel, caplog: pytest.LogCaptureFixture) -> None:
    model.failure = ZeroDivisionError("secret")
    response = http.post(PREDICT, json={"inputs": [1]}, headers={"X-Request-Id": "r-1"})
    assert response.status_code == 500
    assert error_text(response).endswith("Request id: r-1") and "secret" not in response.text
    (record,) = caplog.records
    assert record.levelname == "ERROR" and record.exc_info and record.request_id == "r-1"  # type: ignore[attr-defined]


def test_a_bug_of_ours_is_a_500_with_nothing_in_it(
    http: Http, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Engine, "describe", lambda *_: 1 / 0)
    response = http.get("/v1/models/m/metadata", headers={"X-Request-Id": "r-2"})
    assert response.status_code == 500 and response.headers["x-request-id"] == "r-2"
    assert error_text(response) == "Internal error; the server's log has the cause, request id r-2"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_client_s_error_is_one_line_of_info(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="service")
    http.post(PREDICT, content=b'{"signature_name": "\\n\\ud800", "inputs": NaN}')
    (record,) = [r for r in caplog.records if r.name.startswith("service")]
    assert record.levelname == "INFO" and not record.exc_info
    assert "\n" not in record.getMessage() and record.getMessage().isascii()
