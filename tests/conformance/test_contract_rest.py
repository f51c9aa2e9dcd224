"""Tests the parts of TensorFlow Serving's contract that only REST has: paths, exact bodies, compression, CORS."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess, server_of

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "contract_rest.json").read_text())
PREDICT = "/v1/models/half:predict"
BODY = b'{"inputs": [[2.0]]}'

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def flagged(contract_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:
    """Starts a server with flags of the HTTP port; yields a client of it."""
    models, folder = {"half": contract_models / "half"}, tmp_path_factory.mktemp("flagged")
    flags = ("--rest_api_enable_cors_support", "--rest_api_strict_json", "--rest_api_gzip_min_bytes=1000")
    with server_of(models, folder, *flags) as server:
        yield HttpClient(server.http)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(contract_http: HttpClient, case: dict[str, Any]) -> None:
    body = case.get("body", "").encode()
    response = contract_http.exchange(case["method"], case["path"], body, case.get("headers"))
    assert response.status_code == case["status"], response.text
    assert response.headers["content-type"] == "application/json"
    if "text" in case:
        assert response.text == case["text"]
    else:
        # The error for an unknown model has a field of ours beside TensorFlow Serving's.
        assert {name: told for name, told in response.json().items() if name != "models"} == case["answer"]


def test_names_are_used_once() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":['])
@pytest.mark.parametrize("call", ["predict", "classify"])
def test_a_nest_500000_deep_is_refused(contract_http: HttpClient, opening: bytes, call: str) -> None:
    depth = min(500_000, (1 << 20) // len(opening))
    response = contract_http.exchange("POST", f"/v1/models/half:{call}", opening * depth)
    assert response.status_code == 400
    end = depth * len(opening)
    fault = "Missing a name for object member." if opening.endswith(b"{") else "Invalid value."
    assert response.json() == {"error": f"JSON Parse error: {fault} at offset: {end}"}


def test_a_nest_500000_deep_that_is_closed_is_refused(contract_http: HttpClient) -> None:
    nest = b"[" * 500_000 + b"]" * 500_000
    for body in (nest, b'{"inputs": ' + nest[10_000:-10_000] + b"}", b'{"instances": [' + nest[10_000:-10_000] + b"]}"):
        response = contract_http.exchange("POST", PREDICT, body)
        assert response.status_code == 400 and list(response.json()) == ["error"]


def test_a_nest_500000_deep_in_a_key_of_no_meaning_is_ignored(contract_http: HttpClient) -> None:
    nest = b"[" * 500_000 + b"]" * 500_000
    response = contract_http.exchange("POST", PREDICT, b'{"inputs": [[2.0]], "nested": ' + nest + b"}")
    assert (response.status_code, response.json()) == (200, {"outputs": [[3.0]]})
    response = contract_http.exchange("POST", PREDICT, b'{"signature_name": ' + nest + b"}")
    assert response.status_code == 400 and "key must be a string value" in response.json()["error"]


def test_gzip_bodies_are_decoded(contract_http: HttpClient) -> None:
    response = contract_http.exchange("POST", PREDICT, gzip.compress(BODY), {"Content-Encoding": "gzip"})
    assert response.json() == {"outputs": [[3.0]]}
    response = contract_http.exchange("POST", PREDICT, b"no gzip", {"Content-Encoding": "gzip"})
    assert response.status_code == 400


def test_answers_are_compressed_for_who_asks(flagged: HttpClient) -> None:
    large = json.dumps({"inputs": [2.0] * 1000}).encode()
    for accepted in ("gzip", "identity", "gzip;q=0", "br, gzip;q=0.5"):
        response = flagged.exchange("POST", PREDICT, large, {"Accept-Encoding": accepted})
        encoding = None if accepted in ("identity", "gzip;q=0") else "gzip"
        assert response.headers.get("content-encoding") == encoding
        assert response.json() == {"outputs": [3.0] * 1000}
    small = flagged.exchange("POST", PREDICT, BODY, {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


def test_other_origins_are_let_in_by_the_flag(flagged: HttpClient, contract_http: HttpClient) -> None:
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    allowed = {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "POST, GET",
        "access-control-allow-headers": "Content-Type, X-Request-Id, traceparent, tracestate, baggage",
        "access-control-expose-headers": "X-Model-Version, X-Request-Id, X-Error-Code, Retry-After",
    }
    answers = [
        flagged.exchange("OPTIONS", PREDICT, headers=asked),
        flagged.exchange("POST", PREDICT, BODY, asked),
        flagged.exchange("POST", PREDICT, b"", asked),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert answers[0].content == b""
    for answer in answers:
        assert allowed.items() <= dict(answer.headers).items()
    for method, body in (("OPTIONS", b""), ("POST", BODY)):
        answer = contract_http.exchange(method, PREDICT, body, asked)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_strict_json_has_no_bare_tokens(flagged: HttpClient) -> None:
    examples = b'{"signature_name": "regress", "examples": [{"x": 1e39}]}'
    response = flagged.exchange("POST", PREDICT, b'{"inputs": [1e39, 2]}')
    assert (response.status_code, response.text) == (200, '{"outputs":[null,3.0]}')
    response = flagged.exchange("POST", "/v1/models/half:regress", examples)
    assert (response.status_code, response.text) == (200, '{"results":[null]}')
    response = flagged.exchange("POST", PREDICT, b'{"inputs": [NaN]}')
    assert response.status_code == 400
    assert response.json()["error"].startswith("JSON Parse error: ")


def test_the_canonical_code_comes_in_a_header(contract_http: HttpClient) -> None:
    assert contract_http.exchange("POST", PREDICT, b"").headers["x-error-code"] == "INVALID_ARGUMENT"
    unknown = contract_http.exchange("POST", "/v1/models/m:predict", BODY)
    assert unknown.headers["x-error-code"] == "NOT_FOUND"
    assert "x-error-code" not in contract_http.exchange("POST", PREDICT, BODY).headers


def test_a_client_that_leaves_ends_nothing_else(contract_core: ServerProcess, contract_http: HttpClient) -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    for sent in (head, head + BODY[:5], head + BODY):
        with socket.create_connection(("127.0.0.1", contract_core.http_port)) as client:
            client.sendall(sent)
    assert contract_http.exchange("POST", PREDICT, BODY).json() == {"outputs": [[3.0]]}
