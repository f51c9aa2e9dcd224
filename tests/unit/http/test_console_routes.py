"""Serves the console's files and the routes that only the console uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.http.console_routes import POLICY, ConsoleSources
from tests.unit.http.conftest import Http

STATIC = Path(__file__).parents[3] / "service/console/static"


@pytest.fixture
def console(make_http: Callable[..., Http]) -> Http:
    """Makes an application with a console, whose callers need no credentials."""
    change = {"at_s": 1.5, "version": 3, "state": "AVAILABLE", "message": ""}
    sources = ConsoleSources(
        lambda: "1.2",
        lambda model: {"stable": 3},
        lambda model: [change],
        traffic=lambda: {"start_s": 1.0, "at_s": [], "models": {}},
        folders=lambda model: [2, 3],
    )
    return make_http(console=sources)


def test_browsers_are_led_to_the_console_and_others_are_not(console: Http, http: Http) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    led = console.get("/", headers=html)
    assert (led.status_code, led.headers["location"], led.headers["vary"]) == (307, "console", "Accept")
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        assert (
            console.get("/", headers=accept).json() == http.get("/", headers=accept).json() == {"error": "Not found: /"}
        )
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
    assert model["name"] == "m" and model["labels"] == {"stable": 3}
    assert model["versions"] == [{"version": 3, "state": "AVAILABLE", "code": "OK", "message": ""}]
    assert [change["state"] for change in model["history"]] == ["AVAILABLE"]
    assert model["folders"] == [2, 3]
    assert console.get("/console/traffic").json() == {"start_s": 1.0, "at_s": [], "models": {}}


def test_nobody_signs_in_without_callers(console: Http) -> None:
    session = console.get("/console/session").json()
    assert (session["needs_sign_in"], session["caller"], session["is_admin"]) == (False, None, False)
    assert console.post("/console/session", json={"token": "x"}).status_code == 400
    assert console.post("/console/session", content="token=x").status_code == 400
