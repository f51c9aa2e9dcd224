"""What every answer has in common, operations' routes, and the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from service.codecs.json_examples import decode_examples_body
from service.codecs.json_lookup import decode_lookup, decode_rows
from service.codecs.json_tensor import decode_predict
from service.codecs.oip_json import decode_infer
from service.core.registry import Registry
from service.transports.http.docs_page import add_docs_page
from service.transports.http.oip_routes import read_only_ready
from tests.conftest import RecordingObserver
from tests.unit.transports.conftest import Http, error_text


def test_a_sane_request_id_is_returned(http: Http) -> None:
    assert http.get("/healthz", headers={"X-Request-Id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, "a\tb", "<script>"])
def test_other_request_ids_are_replaced(http: Http, bad: str) -> None:
    answered = http.get("/healthz", headers={"X-Request-Id": bad}).headers["x-request-id"]
    assert answered != bad and re.fullmatch("[0-9a-f]+-[0-9a-f]+", answered)


def test_request_ids_differ_and_stand_on_errors_too(http: Http) -> None:
    ids = [http.get(path).headers["x-request-id"] for path in ("/healthz", "/nothing", "/v1/models")]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (":lookup", {"features": {"user": [1]}}),
        (":predict", {"instances": [1]}),
        ("/tables/t:rows", {"ids": [1]}),
        ("/infer", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}),
    ],
)
def test_an_answer_names_the_version_that_computed_it(http: Http, path: str, body: Any) -> None:
    response = http.post(f"/{'v2' if path == '/infer' else 'v1'}/models/m{path}", json=body)
    assert (response.status_code, response.headers["x-model-version"]) == (200, "3"), response.text


def test_an_error_names_no_version(http: Http) -> None:
    assert "x-model-version" not in http.post("/v1/models/m:predict", json={}).headers


def test_liveness_is_independent_of_models(http: Http, registry: Registry) -> None:
    registry.drain()
    assert http.get("/healthz").json() == {"status": "ok"}


def test_readiness_names_the_model_that_is_not_ready(http: Http, registry: Registry) -> None:
    response = http.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "problems": {}})
    registry.add_model("late")
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "not ready", "problems": {"late": "its folder has not been looked at yet"}}


def test_a_draining_server_is_not_ready_but_answers(http: Http, registry: Registry) -> None:
    registry.drain()
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["problems"] == {"": "no model is configured, or the server is shutting down"}
    assert http.post("/v1/models/m:lookup", json={"features": {"user": [1]}}).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_metrics_are_passed_through(http: Http, path: str) -> None:
    response = http.get(path)
    assert response.content == b"requests 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4"


def test_a_method_that_a_path_does_not_have(http: Http) -> None:
    response = http.post("/healthz")
    assert (response.status_code, error_text(response)) == (405, "POST is not allowed here")
    assert response.headers["allow"] == "GET"


def test_every_documented_body_is_one_that_the_codecs_take(http: Http) -> None:
    parsers: dict[str, Callable[[bytes], object]] = {
        ":classify": decode_examples_body,
        ":lookup": decode_lookup,
        ":predict": decode_predict,
        ":regress": decode_examples_body,
        ":rows": decode_rows,
        "/infer": lambda body: decode_infer(body, None),
        "/repository/index": read_only_ready,
    }
    paths = http.get("/openapi.json").json()["paths"]
    seen = 0
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["responses"]["200"], path
            in_path = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert (method == "post") == ("requestBody" in operation)
            for example in _examples(operation.get("requestBody", {})):
                (parse,) = (parser for suffix, parser in parsers.items() if path.endswith(suffix))
                parse(json.dumps(example).encode())
                seen += 1
    assert seen >= 24
    assert "/v1/models/{model}/labels/{label}:predict" not in paths


def _examples(body: dict[str, object]) -> list[object]:
    content = body.get("content", {})
    assert isinstance(content, dict)
    return [e["value"] for media in content.values() for e in media.get("examples", {}).values()]


def test_the_page_of_the_documentation_is_there(http: Http) -> None:
    response = http.get("/docs")
    assert response.status_code == 200 and "/openapi.json" in response.text


def test_the_page_uses_installed_files_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "swagger-ui-bundle.js").write_text("// here")
    app = FastAPI(docs_url=None)
    add_docs_page(app, tmp_path)
    page = Http(app).get("/docs").text
    assert "http://" not in page and "https://" not in page
    assert Http(app).get("/docs-assets/swagger-ui-bundle.js").text == "// here"


def test_metrics_may_be_elsewhere_or_nowhere(make_http: Callable[..., Http]) -> None:
    elsewhere = make_http(metrics_paths=("/metrics", "/x/y"))
    assert [elsewhere.get(path).status_code for path in ("/metrics", "/x/y", "/monitoring/prometheus/metrics")] == [
        *(200, 200, 404),
    ]
    assert make_http(metrics_paths=()).get("/metrics").status_code == 404


@pytest.mark.parametrize("name", ["predict", "lookup", "classify", "regress"])
@pytest.mark.parametrize("body", [b"{", b"{}", b'{"examples": [{}]}'])
def test_every_method_that_runs_a_signature_counts_under_its_name(
    http: Http, observer: RecordingObserver, name: str, body: bytes
) -> None:
    http.post(f"/v1/models/m:{name}", content=body)
    assert {request["method"] for request in observer.finished_requests} <= {name}
