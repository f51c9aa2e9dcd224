"""The server's own routes give lookups, tables and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.http.conftest import Http, NumpyModel, error_text


@pytest.mark.parametrize("where", ["", "/versions/3"])
def test_only_the_features_that_were_sent_are_answered(http: Http, where: str) -> None:
    path = f"/v1/models/m{where}:lookup"
    assert http.post(path, json={"features": {"user": [1]}}).json() == {"embeddings": {"user": [[2.0, 3.0]]}}
    both = {"features": {"user": [1, 0], "tags": [[0, 1]]}}
    assert http.post(path, json=both).json() == {"embeddings": {"user": [[2.0, 3.0], [0.0, 1.0]], "tags": [[2.0, 4.0]]}}


@pytest.mark.parametrize("where", ["", "/versions/3"])
def test_tables_and_their_rows(http: Http, where: str) -> None:
    (table,) = http.get(f"/v1/models/m{where}/tables").json()["tables"]
    assert (table["name"], table["vocabulary_size"], table["features"]) == ("t", 4, ["tags", "user"])
    response = http.post(f"/v1/models/m{where}/tables/t:rows", json={"ids": [3, 0]})
    assert response.json() == {"rows": [[6.0, 7.0], [0.0, 1.0]]}


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/models/m:lookup", {"features": {}}, 400, "needs at least one feature of: tags, user"),
        ("/v1/models/m:lookup", {"features": {"film": [1]}}, 400, "Features it takes: tags, user"),
        ("/v1/models/m:lookup", {"features": {}, "x": 1}, 400, "Unknown keys: x."),
        ("/v1/models/m:lookup", {"features": {}, "signature_name": "s"}, 400, 'Serving signature key "s" not found.'),
        ("/v1/models/nobody:lookup", {"features": {}}, 404, "Latest(nobody)"),
        ("/v1/models/m/versions/9:lookup", {"features": {}}, 404, "Specific(m, 9)"),
        ("/v1/models/m/labels/l:lookup", {"features": {}}, 400, "Unrecognized servable version label: l"),
        ("/v1/models/m/tables/u:rows", {"ids": [1]}, 404, 'has no table "u". Tables: t.'),
        ("/v1/models/m/tables/t:rows", {"ids": [4]}, 400, "no such row"),
        ("/v1/models/m/tables/t:rows", {"id": [4]}, 400, 'exactly one key, "ids"'),
    ],
)
def test_errors(http: Http, path: str, body: Any, status: int, text: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status
    assert text in error_text(response)


def test_the_number_of_rows_is_bounded(make_http: Callable[..., Http]) -> None:
    response = make_http(max_table_rows=2).post("/v1/models/m/tables/t:rows", json={"ids": [0, 1, 2]})
    assert (response.status_code, error_text(response)) == (400, 'input "ids": 3 ids, the limit is 2 per request.')


def test_a_signature_without_a_lookup_may_still_be_looked_up(http: Http) -> None:
    """The HTTP adapter looks a signature up without asking for its kind."""
    response = http.post("/v1/models/m:lookup", json={"features": {"x": [1]}, "signature_name": "serving_default"})
    assert response.json() == {"embeddings": {"y": [3.0], "z": [1]}}


def test_small_lookups_run_on_the_event_loop_and_all_else_in_threads(
    make_http: Callable[..., Http], model: NumpyModel
) -> None:
    http = make_http(inline_body_bytes=40)
    http.post("/v1/models/m:lookup", json={"features": {"user": [1]}})
    http.post("/v1/models/m:lookup", json={"features": {"user": [1] * 40}})
    http.post("/v1/models/m:predict", json={"inputs": [1]})
    http.post("/v1/models/m:predict", json={"inputs": [1] * 40})
    assert [name.rstrip("_0123456789") for name in model.threads] == [
        "MainThread",
        "http-parse",
        "http-graph",
        "http-graph",
    ]
