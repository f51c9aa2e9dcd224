"""The route for nearest rows searches the toy model's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from service.control.engine import Engine
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import Http, error_text

TAGS = "/v1/models/toy/tables/tag:neighbors"


@pytest.fixture
def engine(toy_engine: Engine) -> Engine:
    """Returns the engine over the toy model, which replaces the one of this folder's other tests."""
    return toy_engine


@pytest.fixture
def http(make_http: Callable[..., Http]) -> Http:
    """Makes a client of an application over the toy model."""
    return make_http(max_body_bytes=1 << 16)


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3, and row 0 has none.
@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"ids": [3], "k": 2}, {"ids": [[2, 1]], "keys": [["green", "red"]], "scores": [[43.0, 13.0]]}),
        ({"keys": ["blue"], "k": 2}, {"ids": [[2, 1]], "keys": [["green", "red"]], "scores": [[43.0, 13.0]]}),
        (
            {"ids": [3], "k": 1, "include_self": True},
            {"ids": [[3]], "keys": [["blue"]], "scores": [[91.0]]},
        ),
        (
            {"vectors": [[1, 1, 1], [0, 0, 0]], "metric": "l2", "k": 2},
            {"ids": [[1, 0], [0, 1]], "keys": [["red", None]] + [[None, "red"]], "scores": [[0.0, 2.0], [1.0, 3.0]]},
        ),
        (
            {"ids": [3], "filter": {"exclude_keys": ["green"], "ids": [0, 2, 99], "keys": ["red"]}},
            {"ids": [[1, 0]], "keys": [["red", None]], "scores": [[13.0, 1.0]]},
        ),
        ({"ids": [3], "filter": {"ids": []}}, {"ids": [[]], "keys": [[]], "scores": [[]]}),
    ],
)
def test_neighbors_by_hand(http: Http, body: Any, answer: Any) -> None:
    for where in ("", "/versions/1"):
        response = http.post(TAGS.replace("/tables", f"{where}/tables"), json=body)
        assert (response.status_code, response.json()) == (200, answer)
        assert response.headers["x-model-version"] == "1"


def test_a_table_without_a_vocabulary_has_no_keys(http: Http) -> None:
    # Row i of table "user" is [i, 10 i].
    response = http.post("/v1/models/toy/tables/user:neighbors", json={"ids": [1], "k": 2})
    assert response.json() == {"ids": [[4, 3]], "scores": [[404.0, 303.0]]}
    response = http.post("/v1/models/toy/tables/user:neighbors", json={"keys": ["a"]})
    assert (response.status_code, error_text(response)) == (400, 'table "user" has no vocabulary: send ids.')


QUERIES = "The number of queries (ids, keys, labels or vectors)"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"ids": []}, f"{QUERIES} is 0, the least is 1."),
        ({"ids": [0] * 257}, f"{QUERIES} is 257, the limit is 256 per request."),
        ({"ids": [0], "k": 0}, '"k" is 0, the least is 1.'),
        ({"ids": [0], "k": 1001}, '"k" is 1001, the limit is 1000 per request.'),
        ({"ids": [4]}, "id 4 at position 0 is out of range"),
        ({"keys": ["violet"]}, "key 'violet' at position 0 is not in its vocabulary."),
        ({"keys": [1]}, 'table "tag": its keys are string.'),
        ({"ids": [1], "filter": {"keys": ["violet"]}}, "key 'violet' at position 0 is not in its vocabulary."),
        ({"ids": [1], "feature": "user"}, 'table "tag" has no feature "user" with keys.'),
        ({"labels": "violet"}, '"labels" is "violet", expected a list of labels'),
        ({"ids": [1], "labels": ["red"]}, '"vectors" and "labels"; the request has ids and labels.'),
        ({"id": [1]}, "metric, vectors. Did you mean ids?"),
        ({"vectors": [[1, 2]]}, 'input "vectors": shape [1, 2], a row of table "tag" has 3 numbers'),
        ({"vectors": [[1, 2, 1e39]]}, 'input "vectors": a number is NaN or infinite.'),
        ({"ids": [1], "metric": "ip"}, "expected one of: dot, cosine, l2"),
    ],
)
def test_bad_requests(http: Http, observer: RecordingObserver, body: Any, text: str) -> None:
    response = http.post(TAGS, json=body)
    assert response.status_code == 400 and text in error_text(response)
    (counted,) = observer.finished_requests
    assert (counted["method"], counted["error"].code, counted["model"]) == ("neighbors", "INVALID_ARGUMENT", "toy")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v1/models/toy/tables/film:neighbors", 'Model "toy" has no table "film". Tables: tag, user.'),
        ("/v1/models/nobody/tables/tag:neighbors", "Servable not found for request: Latest(nobody)"),
        ("/v1/models/toy/versions/9/tables/tag:neighbors", "Specific(toy, 9)"),
    ],
)
def test_what_does_not_exist(http: Http, path: str, text: str) -> None:
    response = http.post(path, json={"ids": [0]})
    assert response.status_code == 404 and text in error_text(response)


def test_a_search_is_counted(http: Http, toy_engine: Engine, observer: RecordingObserver) -> None:
    http.post(TAGS, json={"ids": [1, 2]})
    (counted,) = observer.finished_requests
    assert (counted["api"], counted["signature"], counted["version"], counted["rows"]) == ("http", "neighbors", 1, 2)
    assert toy_engine.searches.rows_scanned() == {"toy": 4}


def test_answers_are_as_the_openapi_document_says(http: Http) -> None:
    document = http("GET", "/openapi.json").json()
    operation = document["paths"]["/v1/models/{model}/tables/{table}:neighbors"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["examples"]["of the first row"]["value"]
    response = http.post(TAGS, json=example)
    assert response.status_code == 200
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    valid = jsonschema_rs.validator_for(schema | {"components": document["components"]})
    assert valid.is_valid(response.json()) and not valid.is_valid({"ids": [[1]]})
