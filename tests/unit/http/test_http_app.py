"""Checks headers that every answer has, the routes for operators, and the OpenAPI documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from service.control.engine import Engine
from service.http.model_routes import read_only_ready
from service.http.routing import RawRoute, in_the_core
from service.types import Array, SignatureSpec, TensorSpec
from service.versions.registry import Registry
from service.versions.servable import Servable
from service.wire.json_body import decode_neighbors
from tests.conftest import RecordingObserver
from tests.openapi_document import check_documented, documented_answer, validator
from tests.unit.http.conftest import QUERY, SEARCH, Http, error_text
from tests.unit.versions.fakes import FakeBackend


def test_no_route_of_the_public_port_changes_a_model_or_names_a_path(make_http: Callable[..., Http]) -> None:
    """A new route that is no GET fails this test until somebody has read which files it can reach, and listed it."""
    routes = [route for route in make_http().app.router.routes if isinstance(route, RawRoute)]
    changing = {
        re.sub(r"^/v[12]/models/{model}(/(versions|labels)/{\w+})?", "M", r.path): r.endpoint
        for r in routes
        if r.method != "GET"
    }
    # Endpoints that refuse every request as UNIMPLEMENTED, such as the load of a model.
    refused = {path for path, endpoint in changing.items() if isinstance(endpoint, partial)}
    assert "/v2/repository/models/{model}/{action}" in refused
    in_core = {path for path, endpoint in changing.items() if endpoint is in_the_core}
    assert in_core == {
        f"M{end}" for end in (":predict", ":classify", ":regress", ":lookup", "/infer", "/tables/{table}:rows")
    }
    reading = {"/v2/repository/index", "M/tables/{table}:neighbors"}
    assert changing.keys() - refused - in_core == reading


def test_a_sane_request_id_is_returned(http: Http) -> None:
    assert http.get("/healthz", headers={"X-Request-Id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, "a\tb", "<script>"])
def test_other_request_ids_are_replaced(http: Http, bad: str) -> None:
    answered = http.get("/healthz", headers={"X-Request-Id": bad}).headers["x-request-id"]
    assert answered != bad and re.fullmatch("[0-9a-f]+-[0-9a-f]+", answered)


def test_request_ids_differ_and_stand_on_errors_too(http: Http) -> None:
    ids = [http.get(path).headers["x-request-id"] for path in ("/healthz", "/nothing", "/v1/models")]
    assert len(set(ids)) == 3


def test_an_answer_names_the_version_that_computed_it(http: Http) -> None:
    response = http.post(SEARCH, json=QUERY)
    assert (response.status_code, response.headers["x-model-version"]) == (200, "3"), response.text


def test_an_error_names_no_version(http: Http) -> None:
    assert "x-model-version" not in http.post(SEARCH, json={}).headers


def test_liveness_is_independent_of_models(http: Http, registry: Registry) -> None:
    registry.drain()
    assert http.get("/healthz").json() == {"status": "ok"}


def test_readiness_names_the_model_that_is_not_ready(http: Http, registry: Registry) -> None:
    response = http.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "problems": {}})
    registry.add_model("late")
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "not ready", "problems": {"late": "its folder has not been read yet"}}
    registry.note_problem("late", "no folder there")
    response = http.get("/readyz")
    assert response.status_code == 200, "a model that was tried is not waited for"
    assert response.json() == {"status": "ready", "problems": {"late": "no folder there"}}


def test_a_draining_server_is_not_ready_but_answers(http: Http, registry: Registry) -> None:
    registry.drain()
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["problems"] == {"": "the server is shutting down"}
    assert http.post(SEARCH, json=QUERY).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_metrics_are_passed_through(http: Http, path: str) -> None:
    response = http.get(path)
    assert response.content == b"requests 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4"


def test_a_method_that_a_path_does_not_have(http: Http) -> None:
    response = http.post("/healthz")
    assert (response.status_code, error_text(response)) == (405, "POST is not allowed here; this path takes GET")
    assert (response.headers["allow"], response.headers["x-error-code"]) == ("GET", "INVALID_ARGUMENT")


def test_control_requests_are_counted_once_under_their_model_and_probes_are_not(
    http: Http, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "describe", lambda *_: 1 / 0)
    asked = [
        ("GET", "/v1/models/m", "m", "GET /v1/models/{model}", None, True),
        ("HEAD", "/v1/models/m", "m", "GET /v1/models/{model}", None, True),
        ("GET", "/v1/models/m/versions/9", "m", "GET /v1/models/{model}/versions/{version}", "NOT_FOUND", True),
        ("GET", "/v1/models/m/metadata", "m", "GET /v1/models/{model}/metadata", "INTERNAL", True),
        ("GET", "/v1/models", "", "GET /v1/models", None, True),
        ("GET", "/metrics", "", "GET /metrics", None, True),
        ("GET", "/v1/models/a%2Fb", "", "GET /v1/models/{model}", "NOT_FOUND", True),
        ("POST", "/v1/models/m:lookp", "m", "", "INVALID_ARGUMENT", False),
        ("POST", "/metrics", "", "", "INVALID_ARGUMENT", False),
        ("POST", "/v1/models/m/versions/x/tables/t:neighbors", "m", "neighbors", "INVALID_ARGUMENT", False),
    ]
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/models/m/ready", "/v2/models/x/ready"):
        http.get(path)
    http.post("/v1/models/m:lookup")  # which the core answers
    assert not observer.finished_requests
    for method, path, *_ in asked:
        http(method, path)
    counted = [
        (one["model"], one["method"], one["error"] and getattr(one["error"], "code", "INTERNAL"), one["is_control"])
        for one in observer.finished_requests
    ]
    assert counted == [tuple(expected) for _, _, *expected in asked]


@pytest.fixture(params=["served", "nothing served"])
def documented(request: pytest.FixtureRequest, registry: Registry) -> None:
    """Runs a test of the documented examples with their model served, and again with nothing served."""
    if request.param == "nothing served":
        registry.unload("m", 3)


# Ends of the paths whose requests the core answers; a test in tests/integration/ sends it the examples of these.
IN_CORE = (":lookup", ":predict", ":classify", ":regress", ":rows", "/infer")


@pytest.mark.usefixtures("documented")
def test_every_documented_body_is_one_that_the_codecs_take(http: Http) -> None:
    parsers: dict[str, Callable[[bytes], object]] = {
        ":neighbors": decode_neighbors,
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
            if path.endswith(IN_CORE):
                continue
            for example in _examples(operation.get("requestBody", {})):
                (parse,) = (parser for suffix, parser in parsers.items() if path.endswith(suffix))
                parse(json.dumps(example).encode())
                seen += 1
    assert seen >= 5
    assert {path.replace("/labels/{label}", "/versions/{version}") for path in paths} <= paths.keys()
    assert "/v1/models/{model}/labels/{label}:predict" in paths


def _examples(body: dict[str, object]) -> list[Any]:
    content = body.get("content", {})
    assert isinstance(content, dict)
    return [e["value"] for media in content.values() for e in media.get("examples", {}).values()]


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize("strict_json", [False, True])
def test_every_documented_example_is_of_its_type(make_http: Callable[..., Http], strict_json: bool) -> None:
    document = make_http(strict_json=strict_json).get("/openapi.json").json()
    seen = 0
    for methods in document["paths"].values():
        for operation in methods.values():
            answers = [documented_answer(document, operation, int(status)) for status in operation["responses"]]
            for part in (operation.get("requestBody", {}), *answers):
                for media in part.get("content", {}).values():
                    for example in media.get("examples", {}).values():
                        validator(document, media["schema"]).validate(example["value"])
                        seen += 1
    assert seen >= 80
    whole = json.dumps(document)
    assert [name for name in document["components"]["schemas"] if f'schemas/{name}"' not in whole] == []


def test_examples_are_of_the_model_that_is_served(http: Http, registry: Registry) -> None:
    document = http.get("/openapi.json").json()
    lookup = document["paths"]["/v1/models/{model}:lookup"]["post"]
    assert _examples(lookup["requestBody"]) == [
        {"signature_name": "lookup", "features": {"user": [0], "tags": [[0]]}},
    ]
    registry.unload("m", 3)
    assert "recent_films" in http.get("/openapi.json").text


def test_examples_show_no_key_of_a_vocabulary(http: Http, registry: Registry) -> None:
    class Names:
        key_dtype = "string"
        example_key = b"ann@example.org"

        def ids_of(self, keys: Array, input_name: str) -> Array:
            """Is not called."""
            raise AssertionError

    inputs = {
        "name": TensorSpec("name", "string", (None,), vocabulary=Names()),
        "age": TensorSpec("age", "float32", (None, 2)),
        "is_new": TensorSpec("is_new", "bool", ()),
    }
    spec = SignatureSpec("serving_default", "predict", "", inputs, {})
    registry.start("m", 4)
    registry.publish(Servable("m", 4, {"serving_default": spec}, {"serving_default": FakeBackend()}))
    paths = http.get("/openapi.json").json()["paths"]
    assert "ann@" not in str(paths)
    (predict,) = _examples(paths["/v1/models/{model}:predict"]["post"]["requestBody"])
    assert predict == {
        "signature_name": "serving_default",
        "inputs": {"age": [[0.0, 0.0]], "is_new": False, "name": ["key"]},
    }
    (infer,) = _examples(paths["/v2/models/{model}/infer"]["post"]["requestBody"])
    assert infer["inputs"][0] == {"name": "age", "datatype": "FP32", "shape": [1, 2], "data": [0.0, 0.0]}
    assert _examples(paths["/v1/models/{model}:lookup"]["post"]["requestBody"]) == []


# Operation -> its method, the end of its path, and the statuses of its answers. Operations of a model have further
# paths for a version and a label, of which the Open Inference Protocol lacks the second.
OPERATIONS = {
    "lookup": "post M:lookup 200 400 401 403 404 413 500 503 504",
    "listTables": "get M/tables 200 400 401 403 404 503",
    "readRows": "post M/tables/{table}:rows 200 400 401 403 404 413 500 503 504",
    "findNeighbors": "post M/tables/{table}:neighbors 200 400 401 403 404 413 500 503 504",
    "pageRows": "get M/tables/{table}:page 200 400 401 403 404 413 500 503 504",
    "showRow": "get M/tables/{table}:row 200 400 401 403 404 413 500 503 504",
    "projectTable": "get M/tables/{table}:projection 200 202 400 401 403 404 413 500 503 504",
    "driftOfTable": "get M/tables/{table}:drift 200 202 400 401 403 404 413 500 503 504",
    "namesOfMap": "get M/tables/{table}:names 200 202 400 401 403 404 413 500 503 504",
    "findRows": "get M/tables/{table}:find 200 400 401 403 404 413 500 503 504",
    "hotRows": "get M/tables/{table}:hot 200 400 401 403 404 413 500 503 504",
    "predict": "post M:predict 200 400 401 403 404 413 500 503 504",
    "classify": "post M:classify 200 400 401 403 404 413 500 503 504",
    "regress": "post M:regress 200 400 401 403 404 413 500 503 504",
    "getStatus": "get M 200 400 401 403 404",
    "getMetadata": "get M/metadata 200 400 401 403 404 503",
    "infer": "post O/infer 200 400 401 403 404 413 500 503 504",
    "describeModel": "get O 200 400 401 403 404 503",
    "getModelConfig": "get O/config 200 400 401 403 404 503",
    "isModelReady": "get O/ready 200 400 401 403 404 503",
    "diffVersion": "get /v1/models/{model}/versions/{version}:diff 200 400 401 403 404 413 500 503 504",
    "getModels": "get /v1/models 200 401",
    "describeServer": "get /v2 200",
    "isLive": "get /v2/health/live 200",
    "isReady": "get /v2/health/ready 200 503",
    "listRepository": "post /v2/repository/index 200 400 401 413",
    "healthz": "get /healthz 200",
    "readyz": "get /readyz 200 503",
    "metrics": "get /metrics 200 401 403",
    "statusz": "get /v1/statusz 200 401 403",
}


def test_the_document_has_each_operation_with_its_statuses(make_http: Callable[..., Http]) -> None:
    expected = {}
    for name, told in OPERATIONS.items():
        method, path, *statuses = told.split()
        for which, where in (("", ""), ("Version", "/versions/{version}"), ("Label", "/labels/{label}")):
            if path[0] == "/" and which or path[0] == "O" and which == "Label":
                continue
            whole = path.replace("M", "/v1/models/{model}" + where).replace("O", "/v2/models/{model}" + where)
            expected[name + which] = (method, whole, statuses)
    paths = make_http(statusz=dict).get("/openapi.json").json()["paths"]
    assert expected == {
        operation["operationId"]: (method, path, sorted(operation["responses"]))
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def test_operations_have_short_names(http: Http) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert sorted(set(names)) == sorted(names)
    assert all(re.fullmatch(r"[a-z][A-Za-z]{3,24}", name) for name in names), names
    assert {"lookup", "lookupVersion", "lookupLabel", "predict", "infer", "inferVersion", "healthz"} <= set(names)


ANSWERS: list[tuple[str, str, Any]] = [
    ("post", "/v1/models/{model}/labels/{label}/tables/{table}:neighbors", QUERY),
    ("post", "/v1/models/{model}/tables/{table}:neighbors", {}),
    ("get", "/v1/models/{model}/tables", None),
    ("get", "/v1/models/{model}/tables/{table}:page", None),
    ("get", "/v1/models/{model}/versions/{version}/tables/{table}:projection", None),
    ("get", "/v1/models/{model}", None),
    ("get", "/v1/models/{model}/metadata", None),
    ("get", "/v2/models/{model}", None),
    ("get", "/v2/models/{model}/config", None),
    ("get", "/v2/models/{model}/ready", None),
    ("get", "/v2", None),
    ("get", "/v2/health/ready", None),
    ("post", "/v2/repository/index", {}),
    ("get", "/readyz", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ANSWERS)
def test_an_answer_is_of_the_type_that_is_documented(
    http: Http, registry: Registry, method: str, path: str, body: Any
) -> None:
    registry.configure({"m": {"stable": 3}})
    document = http.get("/openapi.json").json()
    url = path.format(model="m", version=3, label="stable", table="t")
    response = http.post(url, json=body) if method == "post" else http.get(url)
    check_documented(document, document["paths"][path][method], response)


def test_the_page_of_the_documentation_loads_files_of_this_server_alone(http: Http) -> None:
    page = http.get("/docs").text
    assert "http://" not in page and "https://" not in page
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert http.get(path).status_code == 200, path


def test_metrics_may_be_elsewhere_or_nowhere(make_http: Callable[..., Http]) -> None:
    elsewhere = make_http(metrics_paths=("/metrics", "/x/y"))
    assert [elsewhere.get(path).status_code for path in ("/metrics", "/x/y", "/monitoring/prometheus/metrics")] == [
        *(200, 200, 404),
    ]
    assert make_http(metrics_paths=()).get("/metrics").status_code == 404


@pytest.mark.parametrize("verb", [":predict", ":classify", ":regress", ":lookup", "/tables/t:rows"])
def test_a_data_request_is_sent_to_the_core_again(http: Http, verb: str) -> None:
    response = http.post(f"/v1/models/m{verb}?a=%20b", json={})
    assert (response.status_code, response.headers["location"]) == (307, f"/v1/models/m{verb}")
