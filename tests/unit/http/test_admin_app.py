"""The admin port parses one upsert at a time, and counts what it refuses."""

from __future__ import annotations

import time

import httpx
import pytest

from service.control.engine import Engine
from service.errors import MalformedPayload
from service.http.admin_app import create_admin_app
from service.http.http_parts import HttpParts
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import MAX_BODY_BYTES, Http, error_text

UPSERT = "/v1/models/m/tables/t:upsert"


@pytest.fixture
def admin(engine: Engine) -> Http:
    """Makes a client of the application of the admin port."""
    return Http(
        create_admin_app(
            HttpParts(
                engine=engine,
                metrics=lambda: (b"", "text/plain"),
                metrics_paths=(),
                max_body_bytes=MAX_BODY_BYTES,
                rest_api_timeout_s=30,
                statusz=dict,
            ),
            lambda text: [],
        )
    )


def test_one_upsert_is_parsed_at_a_time(
    admin: Http, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[None] = []
    most = 0

    def parse(body: bytes) -> None:
        nonlocal most
        running.append(None)
        time.sleep(0.01)
        most = max(most, len(running))
        running.pop()
        raise MalformedPayload("no upsert")

    monkeypatch.setattr("service.http.admin_app.decode_upsert", parse)
    answers: list[httpx.Response] = admin.together([lambda client: client.post(UPSERT, content=b"{}")] * 8)
    assert [answer.status_code for answer in answers] == [400] * 8
    assert most == 1
    counted = [(one["model"], one["error"].code, one["is_control"]) for one in observer.finished_requests]
    assert counted == [("m", "INVALID_ARGUMENT", True)] * 8


def test_a_lookup_is_told_that_this_is_the_admin_port(admin: Http) -> None:
    assert "this is the admin port (--admin_port)" in error_text(admin.post("/v1/models/m:lookup", json={}))
    assert error_text(admin.get("/nothing")) == "Not found: /nothing"


def test_a_method_that_a_path_does_not_have_has_a_code(admin: Http) -> None:
    answer = admin.get(UPSERT)
    assert (answer.status_code, error_text(answer)) == (405, "GET is not allowed here")
    assert (answer.headers["allow"], answer.headers["x-error-code"]) == ("POST", "INVALID_ARGUMENT")
