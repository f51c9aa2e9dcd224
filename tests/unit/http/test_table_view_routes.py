"""The routes that show tables to people in the console."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from service.engine.registry import Registry
from tests.unit.http.conftest import TABLE, Http


def test_a_page_has_norms_and_ends_with_the_table(http: Http) -> None:
    page = http.get("/v1/models/m/tables/t:page?start=1&count=2").json()
    assert page["version"] == 3 and page["start"] == 1 and page["total"] == 4 and page["keys"] == page["labels"] == []
    assert page["norms"] == pytest.approx([13**0.5, 41**0.5])
    assert len(http.get("/v1/models/m/tables/t:page").json()["norms"]) == 4
    assert http.get("/v1/models/m/tables/t:page?start=9").json()["norms"] == []


def test_a_row_has_values_and_norm(http: Http) -> None:
    row = http.get("/v1/models/m/versions/3/tables/t:row?id=2").json()
    norm = float(np.linalg.norm(TABLE[2]))
    assert row == {
        "version": 3,
        "id": 2,
        "keys": {},
        "label": None,
        "is_known": True,
        "values": TABLE[2].tolist(),
        "norm": pytest.approx(norm),
        "delta": None,
    }


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("t:page?start=-1", 400, "start must be a number"),
        ("t:page?count=0", 400, "count from 1 to 1000"),
        ("t:page?count=1001", 400, "count from 1 to 1000"),
        ("t:page?start=99999999999999999999", 400, "start must be a number"),
        ("t:row", 400, "either id or key"),
        ("t:row?id=1&key=a", 400, "either id or key"),
        ("t:row?id=4", 400, "no such row"),
        ("t:row?key=a", 400, "no vocabulary"),
        ("none:row?id=1", 404, 'no table "none". Tables: t.'),
        ("none:projection", 404, 'no table "none"'),
        ("t:drift", 400, "Name the version to compare with"),
        ("t:drift?from=x", 400, "Failed to convert version: x"),
        ("none:drift?from=1", 404, 'no table "none"'),
        ("none:names", 404, 'no table "none"'),
        ("none:find?label=x", 404, 'no table "none"'),
        ("t:find?label=x", 400, "has no labels: export the model with --labels t=FILE"),
        ("t:find", 400, "Give a text as label"),
    ],
)
def test_a_wrong_question_is_told_why(http: Http, path: str, status: int, text: str) -> None:
    answer = http.get(f"/v1/models/m/tables/{path}")
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_a_map_is_computed_beside_requests_and_kept(http: Http, registry: Registry) -> None:
    def ask() -> Any:
        end_s = time.monotonic() + 20
        while (answer := http.get("/v1/models/m/tables/t:projection")).status_code == 202:
            assert answer.json() == {"state": "computing"} and time.monotonic() < end_s
        return answer.json()

    found = ask()
    assert found["total"] == 4 and found["ids"] == [0, 1, 2, 3] and found["version"] == 3
    # All four rows lie on one line, so the first axis explains all of their variance.
    assert found["explained"] == pytest.approx([1, 0], abs=1e-6)
    assert sorted(found["x"]) == pytest.approx([-1, -1 / 3, 1 / 3, 1], abs=1e-4)
    assert http.get("/v1/models/m/tables/t:projection").status_code == 200
    registry.unload("m", 3)
    assert http.get("/v1/models/m/tables/t:projection").status_code == 503
