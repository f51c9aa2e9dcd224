"""TensorFlow Serving's REST API and the Open Inference Protocol have their routes, answers and texts for errors."""

from __future__ import annotations

from typing import Any

import pytest

from service.control.engine import Engine
from service.errors import BackendFailure
from service.versions.registry import Registry
from service.versions.servable import Servable
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import QUERY, SEARCH, Http, NumpyTable, error_text, specs
from tests.unit.versions.fakes import FakeBackend

SPECIFIC = "Servable not found for request: Specific(m, 9); versions served:"
VERBS = "POST to :predict, :lookup, :classify or :regress"
LABEL, UNLABELLED = "Unrecognized servable version label", "; no version has a label; versions served: 3"


TAKES_GET = "POST is not allowed here; this path takes GET"
# Request line -> what follows "Malformed request" and the line.
MALFORMED = {
    "GET /v1/models/m/versions/x/metadata": "",
    "GET /v1/models/m/versions/-1": "",
    "POST /v1/models/m:unknown": f'; there is no verb "unknown": {VERBS}',
    "GET /v1/models/m:predict": "; did you mean POST /v1/models/m:predict?",
    "PUT /v1/models/m": "; this path takes GET",
    "DELETE /v1/models/m:predict": "; this path takes POST",
    "GET /v1/models/m/tables/t:neighbors": "; this path takes POST",
    "POST /v1/models/m/labels/a": "; this path takes GET; did you mean /v1/models/m/labels/a:predict or :lookup?",
    "POST /v1/models/predict": "; this path takes GET; did you mean /v1/models/MODEL:predict?",
    "POST /v1/models": "; this path takes GET; did you mean /v1/models/MODEL:predict?",
    "POST /v1/models/m:neighbors": "; did you mean POST /v1/models/m/tables/TABLE:neighbors?",
    "GET /v1/models/m:diff": "; did you mean GET /v1/models/m/versions/VERSION:diff?",
    "POST /v1/models/m/infer": "; did you mean POST /v2/models/m/infer?",
    "GET /v1/models/m/tables/t": "; did you mean /v1/models/m/tables?",
    "GET /v1/models/m/table": "; did you mean GET /v1/models/m/tables?",
    "GET /v1/models/m/versions": "; did you mean /v1/models/m?",
    "GET /v1/models/m%0A/x": "",
}


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        *((line, 400, f"Malformed request: {line}{more}") for line, more in MALFORMED.items()),
        ("GET /v1/nothing?x=1", 400, "Malformed request: GET /v1/nothing"),
        ("POST /v1/models/nobody/tables/t:neighbors", 404, "Servable not found for request: Latest(nobody)"),
        ("POST /v1/models/m/versions/9/tables/t:neighbors", 404, f"{SPECIFIC} 3"),
        ("POST /v1/models/m/labels/stable/tables/t:neighbors", 400, f"{LABEL}: stable{UNLABELLED}"),
        (f"GET /v1/models/m/versions/{2**63}", 400, f"Failed to convert version: {2**63} to numeric."),
        ("POST /v2/models/m:infer", 404, "Not found: /v2/models/m:infer; did you mean POST /v2/models/m/infer?"),
        ("POST /V2/models/m/infer", 404, "Not found: /V2/models/m/infer; did you mean /v2/models/m/infer?"),
        ("POST /v2/models/infer", 405, f"{TAKES_GET}; did you mean /v2/models/MODEL/infer?"),
        ("POST /v2/models/m/versions/1", 405, f"{TAKES_GET}; did you mean /v2/models/m/versions/1/infer?"),
        ("POST /v2/models/m/ready", 405, TAKES_GET),
        ("POST /v2/infer", 404, "Not found: /v2/infer; did you mean /v2/models/MODEL/infer?"),
        ("POST /models/m/invoke", 404, "Not found: /models/m/invoke; did you mean /v1/models/m:predict?"),
        ("POST /v1/predict", 400, "Malformed request: POST /v1/predict; did you mean /v1/models/MODEL:predict?"),
        ("POST /v1/embeddings", 400, "Malformed request: POST /v1/embeddings; did you mean /v1/models/MODEL:lookup?"),
        ("GET /ping", 404, "Not found: /ping; did you mean /healthz?"),
        ("GET /v2/models/nobody", 404, "Servable not found for request: Latest(nobody); models: m"),
        ("GET /v1", 404, "Not found: /v1"),
        ("GET /nothing", 404, "Not found: /nothing"),
        ("GET /v1/models/nobody", 404, "Could not find any versions of model nobody"),
        ("GET /v1/models/m/versions/9", 404, "Could not find version 9 of model m"),
        ("GET /v1/models/nobody/metadata", 404, "Servable not found for request: Latest(nobody)"),
        ("GET /v1/models/m/labels/stable/metadata", 400, f"{LABEL}: stable{UNLABELLED}"),
        ("POST /V1/Models/m/VERSIONS/9/tables/t:neighbors", 404, f"{SPECIFIC} 3"),
        ("POST /v1/models/a%2Fb%3A/tables/t:neighbors", 404, "Servable not found for request: Latest(a/b:)"),
        ("GET /v1/models/m/labels/a%2Fb/metadata", 400, f"{LABEL}: a/b{UNLABELLED}"),
        ("GET /v1/models/labels/x", 400, "Missing model name in request."),
    ],
)
def test_paths_and_methods(http: Http, request_line: str, status: int, text: str) -> None:
    method, path = request_line.split(" ")
    response = http(method, path, json=QUERY) if method == "POST" else http(method, path)
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
    assert signatures.keys() == {"lookup", "regress", "serving_default"}
    assert signatures["serving_default"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "x:0",
    }


def test_head_and_options(http: Http) -> None:
    head = http("HEAD", "/v1/models/m")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    options = http("OPTIONS", SEARCH)
    assert (options.status_code, options.headers["allow"]) == (204, "POST, OPTIONS")


def test_requests_are_counted_also_where_they_never_reach_a_model(http: Http, observer: RecordingObserver) -> None:
    http.post(SEARCH, json={"ids": [0, 1]})
    http.post(SEARCH, content=b"{")
    http.post("/v1/models/nobody/tables/t:neighbors", json=QUERY)
    kept = [
        (r["api"], r["model"], r["version"], r["signature"], r["rows"], r["error"] and r["error"].code)
        for r in observer.finished_requests
    ]
    assert {r["method"] for r in observer.finished_requests} == {"neighbors"}
    assert kept == [
        ("http", "m", 3, "neighbors", 2, None),
        ("http", "m", None, "", 0, "INVALID_ARGUMENT"),
        ("http", "", None, "", 0, "NOT_FOUND"),
    ]


def test_a_fault_of_the_server_hides_its_cause(http: Http, table: NumpyTable, caplog: pytest.LogCaptureFixture) -> None:
    table.failure = BackendFailure("The run failed.")
    table.failure.__cause__ = ZeroDivisionError("secret")
    response = http.post(SEARCH, json=QUERY, headers={"X-Request-Id": "r-1"})
    assert response.status_code == 500
    assert error_text(response) == "The run failed. Request id: r-1"
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
    http.post(SEARCH, content=b'{"\\n\\u2028": 1}')
    (record,) = [r for r in caplog.records if r.name.startswith("service")]
    assert record.levelname == "INFO" and not record.exc_info
    assert "\n" not in record.getMessage() and record.getMessage().isascii()


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
    assert error_text(http.get(INFER)) == "GET is not allowed here; this path takes POST"


@pytest.mark.parametrize("where", ["", "/versions/3"])
def test_tables(http: Http, where: str) -> None:
    (table,) = http.get(f"/v1/models/m{where}/tables").json()["tables"]
    assert (table["name"], table["vocabulary_size"], table["features"]) == ("t", 4, ["tags", "user"])
