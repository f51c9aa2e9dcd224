"""The console's files and the routes that only it uses: an overview, tables, rows and maps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.http.console_routes import POLICY
from service.http.http_parts import ConsoleSources
from service.versions.registry import Registry
from tests.unit.http.conftest import TABLE, Http

STATIC = Path(__file__).parents[3] / "service/console/static"


@pytest.fixture
def console(make_http: Callable[..., Http]) -> Http:
    """Makes an application with a console, whose callers need no credentials."""
    change = {"at_s": 1.5, "version": 3, "state": "AVAILABLE", "message": ""}
    sources = ConsoleSources(
        version=lambda: "1.2",
        labels=lambda model: {"stable": 3},
        history=lambda model: [change],
        traffic=lambda: {"start_s": 1.0, "at_s": [], "models": {}},
        folders=lambda model: [2, 3],
        base_path=lambda model: f"/models/{model}",
        pinned=lambda model: 3,
    )
    return make_http(console=sources)


def test_browsers_are_led_to_the_console_and_others_are_not(console: Http, http: Http) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    led = console.get("/", headers=html)
    assert (led.status_code, led.headers["location"], led.headers["vary"]) == (307, "console", "Accept")
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        told = {"error": "Not found: /; /docs lists the paths, /v1/models the models"}
        assert console.get("/", headers=accept).json() == http.get("/", headers=accept).json() == told
    assert http.get("/", headers=html).status_code == 404
    assert http.get("/console").status_code == 404


def test_the_page_has_a_strict_policy_and_is_not_sent_twice(console: Http) -> None:
    page = console.get("/console")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY
    assert console.get("/console", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    assert "<script>" not in page.text and "style=" not in page.text


def test_all_files_are_served_with_their_types(console: Http) -> None:
    types = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".txt": "text/plain",
        ".html": "text/html",
    }
    names = [file.name for file in STATIC.iterdir()]
    assert {"app.js", "app.css", "index.html", "licenses.txt"} <= set(names)
    for name in names:
        answer = console.get(f"/console/static/{name}")
        assert answer.content == (STATIC / name).read_bytes()
        assert answer.headers["content-type"].partition(";")[0] == types[Path(name).suffix]
    for path in ("none.js", "..%2fapi.ts", "%2e%2e/__init__.py", ""):
        assert console.get(f"/console/static/{path}").status_code in (404, 405), path


def test_the_overview_has_models_labels_and_changes(console: Http) -> None:
    document = console.get("/console/overview").json()
    assert document["server"] == {"version": "1.2", "is_ready": True, "is_draining": False}
    assert {"lookup", "rows", "page", "projection"} <= set(document["methods"])
    (model,) = document["models"]
    assert model["name"] == "m" and model["labels"] == {"stable": 3} and model["pinned"] == 3
    assert model["versions"] == [{"version": 3, "state": "AVAILABLE", "code": "OK", "message": ""}]
    assert [change["state"] for change in model["history"]] == ["AVAILABLE"]
    assert (model["folders"], model["base_path"]) == ([2, 3], "/models/m")
    assert console.get("/console/traffic").json() == {"start_s": 1.0, "at_s": [], "models": {}}


def test_nobody_signs_in_without_callers(console: Http) -> None:
    session = console.get("/console/session").json()
    assert (session["needs_sign_in"], session["caller"], session["is_admin"]) == (False, None, False)
    assert console.post("/console/session", json={"token": "x"}).status_code == 400
    assert console.post("/console/session", content="token=x").status_code == 400


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
        ("t:row?key=a", 400, "no vocabulary: give id in place of key"),
        ("none:row?id=1", 404, 'no table "none". Tables: t.'),
        ("none:projection", 404, 'no table "none"'),
        ("t:drift", 400, "Name the version to compare with"),
        ("t:drift?from=x", 400, "Failed to convert version: x"),
        ("none:drift?from=1", 404, 'no table "none"'),
        ("none:names", 404, 'no table "none"'),
        ("none:find?label=x", 404, 'no table "none"'),
        ("t:find?label=x", 400, "has no labels: export the model with --labels t=FILE"),
        ("t:find", 400, "Give a text as label or as text"),
        ("t:find?label=x&text=x", 400, "Give a text as label or as text"),
        ("none:find?text=x", 404, 'no table "none"'),
    ],
)
def test_a_wrong_question_is_told_why(http: Http, path: str, status: int, text: str) -> None:
    answer = http.get(f"/v1/models/m/tables/{path}")
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_a_row_is_found_by_its_id_without_labels_and_keys(http: Http) -> None:
    for text, rows in (("3", [{"id": 3, "label": None, "by": "row id"}]), ("4", []), ("x", []), ("9" * 30, [])):
        assert http.get(f"/v1/models/m/tables/t:find?text={text}").json() == {"rows": rows}


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
