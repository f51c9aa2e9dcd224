"""The HTTP application speaks the Open Inference Protocol."""

from __future__ import annotations

import pytest

from service.engine.registry import Registry
from service.engine.servable import Servable
from tests.unit.engine.fakes import FakeBackend
from tests.unit.http.conftest import Http, error_text, specs

INFER = "/v2/models/m/infer"


def add_lookups(registry: Registry) -> None:
    """Adds version 1 of model "lookups", which has no serving_default."""
    registry.add_model("lookups")
    registry.start("lookups", 1)
    registry.publish(Servable("lookups", 1, {"lookup": specs()["lookup"]}, {"lookup": FakeBackend()}))


def test_without_serving_default_the_signature_that_is_described_is_lookup(http: Http, registry: Registry) -> None:
    add_lookups(registry)
    inputs = [tensor["name"] for tensor in http.get("/v2/models/lookups").json()["inputs"]]
    assert inputs == ["user", "tags__values", "tags__row_splits"]


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
    refused = http.post("/v2/repository/index", content=b'{"ready": 1}')
    assert (refused.status_code, error_text(refused)) == (400, '"ready" is 1, expected true or false.')
    # As in Triton, other keys mean nothing.
    assert len(http.post("/v2/repository/index", content=b'{"ready": false, "x": 1}').json()) == 2


def test_the_body_of_the_repository_index_is_bounded(http: Http) -> None:
    assert http.post("/v2/repository/index", content=b" " * 4097).status_code == 413


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
