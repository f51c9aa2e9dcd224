"""The HTTP application speaks the Open Inference Protocol."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.registry import Registry
from service.engine.servable import Servable
from service.errors import BackendFailure
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import MAX_BODY_BYTES, Http, NumpyModel, error_text, specs

INFER = "/v2/models/m/infer"
LENGTH = "Inference-Header-Content-Length"
X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
USER = {"name": "user", "datatype": "INT64", "shape": [1], "data": [1]}


def infer(http: Http, *inputs: Any, path: str = INFER, **fields: Any) -> httpx.Response:
    """Posts an inference."""
    return http.post(path, json={"inputs": list(inputs)} | fields)


def add_lookups(registry: Registry, model: NumpyModel) -> None:
    """Adds version 1 of model "lookups", which has no serving_default."""
    registry.add_model("lookups")
    registry.start("lookups", 1)
    registry.publish(Servable("lookups", 1, {"lookup": specs()["lookup"]}, {"lookup": model}))


def outputs(response: httpx.Response) -> dict[str, Any]:
    """Returns the outputs of a JSON answer: name -> data; fails if the answer has another form."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json" and LENGTH not in response.headers
    return {output["name"]: output["data"] for output in response.json()["outputs"]}


def test_the_default_is_serving_default_and_a_parameter_chooses_another(http: Http) -> None:
    assert outputs(infer(http, X)) == {"y": [3.0, 5.0], "z": [1, 2]}
    response = infer(http, USER, parameters={"signature_name": "lookup"})
    assert outputs(response) == {"user": [2.0, 3.0]}
    assert response.json()["parameters"] == {"signature_name": "lookup"}
    assert (response.json()["model_name"], response.json()["model_version"]) == ("m", "3")


def test_without_serving_default_the_default_is_lookup(http: Http, registry: Registry, model: NumpyModel) -> None:
    add_lookups(registry, model)
    path = "/v2/models/lookups/infer"
    assert outputs(infer(http, USER, path=path)) == {"user": [2.0, 3.0]}
    inputs = [tensor["name"] for tensor in http.get("/v2/models/lookups").json()["inputs"]]
    assert inputs == ["user", "tags__values", "tags__row_splits"]
    response = infer(http, USER, path=path, parameters={"signature_name": "serving_default"})
    assert error_text(response) == 'Serving signature key "serving_default" not found.'


def test_requested_outputs_and_the_id(http: Http) -> None:
    response = infer(http, X, id="42", outputs=[{"name": "z"}])
    assert outputs(response) == {"z": [1, 2]}
    assert response.json()["id"] == "42"
    assert "id" not in infer(http, X).json()


def test_binary_data_both_ways(http: Http) -> None:
    head = json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
        }
    ).encode()
    response = http.post(INFER, content=head + struct.pack("<ff", 1, 2), headers={LENGTH: str(len(head))})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[LENGTH])
    y, z = json.loads(response.content[:length])["outputs"]
    assert y == {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    assert z["data"] == [1, 2]
    assert struct.unpack("<ff", response.content[length:]) == (3.0, 5.0)


@pytest.mark.parametrize("where", ["", "/versions/3"])
def test_ragged_features_travel_in_parts_and_may_be_left_out(http: Http, where: str) -> None:
    values = {"name": "tags__values", "datatype": "INT64", "shape": [3], "data": [0, 1, 1]}
    splits = {"name": "tags__row_splits", "datatype": "INT64", "shape": [3], "data": [0, 2, 3]}
    parameters = {"signature_name": "lookup"}
    response = infer(http, values, splits, path=f"/v2/models/m{where}/infer", parameters=parameters)
    assert outputs(response) == {"tags": [2.0, 4.0, 2.0, 3.0]}
    response = infer(http, values, parameters=parameters)
    assert (response.status_code, "tags__row_splits" in error_text(response)) == (400, True)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_client_that_asks_for_one_coding_gets_it(http: Http, coding: str) -> None:
    content = json.dumps({"inputs": [X], "parameters": {"binary_data_output": True}}).encode()
    sent = gzip.compress(content) if coding == "gzip" else zlib.compress(content)
    response = http.post(INFER, content=sent, headers={"Content-Encoding": coding, "Accept-Encoding": coding})
    assert (response.status_code, response.headers["content-encoding"]) == (200, coding)
    # httpx has decompressed the answer, and the header has the length of the JSON before its compression.
    length = int(response.headers[LENGTH])
    assert struct.unpack("<ffqq", response.content[length:]) == (3.0, 5.0, 1, 2)
    plain = http.post(INFER, content=content, headers={"Accept-Encoding": "gzip, deflate"})
    assert "content-encoding" not in plain.headers and plain.content == response.content


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/models/nobody/infer", {"inputs": []}, 404, "Servable not found for request: Latest(nobody)"),
        ("/v2/models/m/versions/9/infer", {"inputs": []}, 404, "Specific(m, 9)"),
        ("/v2/models/m/versions/old/infer", {"inputs": []}, 400, "Unrecognized servable version label: old"),
        (f"/v2/models/m/versions/{'9' * 30}/infer", {"inputs": []}, 400, "is not a number of 64 bits"),
        (INFER, {"inputs": [], "parameters": {"signature_name": "s"}}, 400, 'Serving signature key "s" not found.'),
        (INFER, {"inputs": []}, 400, "Missing but required: {x}"),
        (INFER, {"inputs": [X | {"name": "w"}]}, 400, "Signature input alias: x(feed name: x:0) not found in request"),
        (INFER, {"inputs": [X | {"datatype": "FP64"}]}, 400, "Expects arg[0] to be float but double is provided"),
        (INFER, {"inputs": [X | {"datatype": "FP8"}]}, 400, 'unknown datatype "FP8"'),
        (INFER, {"inputs": [X | {"shape": [3]}]}, 400, "2 values, its shape [3] needs 3."),
        (INFER, {"inputs": [X], "outputs": [{"name": "w"}]}, 400, "output tensor alias not found in signature: w"),
        (INFER, {"inputs": [X], "outputs": [{"name": "y"}] * 2}, 400, "duplicate output tensor alias: y"),
    ],
)
def test_errors(http: Http, path: str, body: Any, status: int, text: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status
    assert text in error_text(response)


def test_limits_and_faults(http: Http, model: NumpyModel, observer: RecordingObserver) -> None:
    assert http.post(INFER, content=b" " * (MAX_BODY_BYTES + 1)).status_code == 413
    assert error_text(http.post(INFER, content=b"{}", headers={LENGTH: "3"})).startswith(LENGTH)
    assert observer.finished_requests[-1]["error"].code == "INVALID_ARGUMENT"
    model.failure = BackendFailure("no luck")
    response = infer(http, X)
    assert response.status_code == 500
    assert error_text(response).startswith("no luck Request id: ")
    assert observer.finished_requests[-1]["signature"] == "serving_default"


def test_what_json_can_not_carry_is_the_requests_fault(http: Http, model: NumpyModel) -> None:
    model.run = lambda *_: {"y": np.array([b"\xff"], object)}  # type: ignore[method-assign]
    response = infer(http, X)
    assert (response.status_code, "not UTF-8" in error_text(response)) == (400, True)
    assert infer(http, X, parameters={"binary_data_output": True}).status_code == 200


def test_health_and_metadata(http: Http, registry: Registry) -> None:
    assert http.get("/v2/health/live").json() == {"live": True}
    ready = http.get("/v2/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True})
    server = http.get("/v2").json()
    assert server["name"] == "embedding-server" and "binary_tensor_data" in server["extensions"]
    assert http.get("/v2/models/m/ready").json() == {"name": "m", "ready": True}
    assert http.get("/v2/models/m/versions/3/ready").status_code == 200
    assert http.get("/v2/models/m/versions/4/ready").status_code == 404
    assert http.get("/v2/models/nobody/ready").status_code == 404
    assert http.get("/v2/models/m").json() == {
        "name": "m",
        "versions": ["3"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1]},
            {"name": "z", "datatype": "INT64", "shape": [-1]},
        ],
    }
    lookup = http.get("/v2/models/m/versions/3?signature_name=lookup").json()
    assert lookup["outputs"][0] == {"name": "user", "datatype": "FP32", "shape": [-1, 2]}
    config = http.get("/v2/models/m/config?signature_name=lookup").json()
    assert config["input"][0] == {"name": "user", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}
    assert http.get("/v2/models/m?signature_name=s").status_code == 400

    registry.add_model("late")
    assert (http.get("/v2/health/ready").status_code, http.get("/v2/health/ready").json()) == (503, {"ready": False})
    assert http.get("/v2/models/late/ready").status_code == 503
    assert infer(http, path="/v2/models/late/infer").status_code == 503
    registry.drain()
    refused = http.get("/v2/models/m/ready")
    assert (refused.status_code, error_text(refused)) == (503, "The server is shutting down.")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": false}'])
def test_the_repository_index(http: Http, registry: Registry, body: bytes) -> None:
    registry.add_model("late")
    late, m = http.post("/v2/repository/index", content=body).json()
    assert m == {"name": "m", "version": "3", "state": "READY", "reason": ""}
    assert (late["name"], late["version"], late["state"]) == ("late", "", "UNAVAILABLE") and late["reason"]
    assert len(http.post("/v2/repository/index", content=b'{"ready": true}').json()) == 1
    assert http.post("/v2/repository/index", content=b'{"ready": 1}').status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/m/stats"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/models/m/trace/setting"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("POST", "/v2/repository/models/m/load"),
        ("POST", "/v2/repository/models/m/unload"),
    ],
)
def test_what_is_not_served_says_so(http: Http, method: str, path: str) -> None:
    response = http(method, path)
    assert (response.status_code, "not implemented" in error_text(response)) == (501, True)


def test_other_paths_and_methods(http: Http) -> None:
    assert error_text(http.get("/v2/nothing")) == "Not found: /v2/nothing"
    assert error_text(http.get(INFER)) == "GET is not allowed here"


def test_a_large_body_is_answered_too(make_http: Callable[..., Http]) -> None:
    http = make_http(max_body_bytes=1 << 20, inline_body_bytes=64)
    x = {"name": "x", "datatype": "FP32", "shape": [1000], "data": [1] * 1000}
    assert outputs(infer(http, x))["y"] == [3.0] * 1000
