"""Every data request ends in the core, however odd: it forwards none, and keeps the texts of the API."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conformance.wires import predict_request
from tests.integration.conftest import Serve
from tests.integration.h2_client import PREDICT, H2Client, framed
from tests.integration.process import ServerProcess
from tests.integration.raw_http import answer, post, status
from tests.toy_model import write_toy_model

BODY = b'{"features": {"user": [1]}}'
FOUND = '{"embeddings":{"user":[[1.0,10.0]]}}'
LOOKUP = "/v1/models/toy:lookup"
INFER = "/v2/models/toy/infer"
INFER_BODY = (
    b'{"inputs": [{"name": "user", "shape": [1], "datatype": "INT64", "data": [1]}],'
    b' "parameters": {"signature_name": "lookup"}}'
)
LENGTH = b"inference-header-content-length: "
MAX_BYTES = 100_000
LONG = b'{"features": {"user": [' + b"1," * MAX_BYTES + b"1]}}"
REFUSED = "Valid credentials are required: Authorization: Bearer <token>, or a certificate."


class Asked(NamedTuple):
    """An HTTP request, and a part of its answer."""

    path: str
    status: int
    text: str
    headers: tuple[bytes, ...] = ()
    method: str = "POST"
    body: bytes = BODY


def malformed(path: str, method: str = "POST") -> Asked:
    """Returns a request that is refused with TensorFlow Serving's text for a path that it does not know."""
    body = b"" if method in ("GET", "HEAD") else BODY
    return Asked(path, 400, f"Malformed request: {method} {path}", method=method, body=body)


OVER_HTTP = [
    Asked("/V1/Models/toy/VERSIONS/3:lookup", 200, FOUND),
    Asked("/v1/models/t%6Fy:lookup", 200, FOUND),
    Asked("/v1/models/toy/versions/%33:lookup", 200, FOUND),
    Asked("/v1/models/toy/versions/00000000000000000000000003:lookup", 200, FOUND),
    Asked("/v1/models/to%2Fy:lookup", 404, "Servable not found for request: Latest(to/y)"),
    Asked("/v1/models/a%20b:lookup", 404, "Servable not found for request: Latest(a b)"),
    Asked("/v1/models/toy/labels/a%3ab:lookup", 400, "Unrecognized servable version label: a:b"),
    Asked("/v1/models/toy/versions/9223372036854775807:lookup", 404, "Specific(toy, 9223372036854775807)"),
    Asked(
        "/v1/models/toy/versions/9223372036854775808:lookup",
        400,
        "Failed to convert version: 9223372036854775808 to numeric.",
    ),
    malformed("/v1/models/toy/versions/x:lookup"),
    malformed("/v1/models/a:b:lookup"),
    malformed("/v1/models/toy/tables/:rows"),
    malformed(LOOKUP, "PUT")._replace(status=405),
    malformed(LOOKUP, "GET")._replace(status=405),
    Asked("/v1/models/toy/tables/a:b:rows", 404, 'has no table \\"a:b\\"', body=b'{"ids": [1]}'),
    Asked(INFER, 405, "DELETE is not allowed here; send it by POST", method="DELETE"),
    Asked(LOOKUP, 204, "allow: POST, OPTIONS", method="OPTIONS", body=b""),
    Asked(LOOKUP, 200, "access-control-allow-origin: *", (b"origin: http://a.example",), "OPTIONS", b""),
    Asked(LOOKUP, 200, FOUND, (b"upgrade: h2c", b"content-type: text/plain", b"te: trailers")),
    Asked(INFER, 200, '"data":[1.0,10.0]', body=INFER_BODY),
    Asked("/v2/models/t%6Fy/versions/%33/infer", 200, '"data":[1.0,10.0]', body=INFER_BODY),
    Asked("/v2/models/toy/versions/stable/infer", 400, "Unrecognized servable version label: stable", body=INFER_BODY),
    Asked(
        "/v2/models/toy/versions/9223372036854775808/infer",
        400,
        "Version 9223372036854775808 is not a number of 64 bits.",
        body=INFER_BODY,
    ),
    Asked(INFER, 200, '"data":[1.0,10.0]', (LENGTH + b"%d" % len(INFER_BODY),) * 2, body=INFER_BODY),
    Asked(INFER, 400, "Inference-Header-Content-Length: '+1' is not a length in bytes.", (LENGTH + b"+1",)),
    Asked(INFER, 400, "Inference-Header-Content-Length: '\\\\xc2\\\\xb2' is not", (LENGTH + "²".encode(),)),
    Asked(LOOKUP, 413, f"The body of {len(LONG)} bytes is over the limit of {MAX_BYTES} bytes.", body=LONG),
    Asked(LOOKUP, 400, "Content-Encoding 'br' is not supported", (b"content-encoding: br",)),
]


# A lookup of one row of the toy model.
USUAL = predict_request("toy", {"user": np.array([1])})
NOT_A_MESSAGE = "The request is not a valid tensorflow.serving.PredictRequest message."
ENDED = "The client ended the call after {} of {} bytes of its message."
# Body of a call, and its status; the texts of refusals.
OVER_GRPC: list[tuple[bytes, int, str]] = [
    (framed(USUAL + b"\x98\x06\x01"), 0, ""),
    (framed(USUAL + b"\x9b\x06\x08\x01\x9c\x06"), 0, ""),
    (framed(USUAL + b"\x08\x01"), 0, ""),
    (framed(USUAL + USUAL), 0, ""),
    (framed(b"\x0a\x08\x0a\x06absent" + USUAL), 0, ""),
    (framed(USUAL + b"\x0a\x08\x0a\x06absent"), 5, "Servable not found for request: Latest(absent); models: toy"),
    (framed(USUAL + b"\x9c\x06"), 3, NOT_A_MESSAGE),
    (framed(USUAL + b"\x9b\x06"), 3, NOT_A_MESSAGE),
    (framed(b""), 3, "Missing ModelSpec"),
    (framed(b"x" * 2 * MAX_BYTES), 8, f"SERVER: Received message larger than max ({2 * MAX_BYTES} vs. {MAX_BYTES})"),
    # Prefixes that promise more bytes than come, 4 GiB, and fewer than come.
    (framed(USUAL)[:-1], 13, ENDED.format(len(USUAL) + 4, len(USUAL) + 5)),
    (framed(USUAL)[:3], 13, ENDED.format(3, 5)),
    (b"\0\xff\xff\xff\xff" + USUAL, 8, f"SERVER: Received message larger than max ({2**32 - 1} vs. {MAX_BYTES})"),
    (b"\0\0\0\0\3" + USUAL, 12, "The method takes exactly one request message, and the client sent more."),
    (b"\x02" + framed(USUAL)[1:], 13, "The message's prefix has the unknown flag 2."),
]


def forwarded(server: ServerProcess) -> int:
    """Returns how many requests the core has forwarded before this one, which it forwards, too."""
    plane = server.http.get("/v1/statusz").json()["data_plane"]
    if plane["kind"] != "native":
        pytest.skip("there is no core")
    return int(sum(plane["forwarded"].values()))


def test_rare_requests_are_answered_and_refused_by_the_core(tmp_path: Path, serve: Serve) -> None:
    write_toy_model(tmp_path / "toy" / "3")
    server = serve(
        model_base_path=tmp_path / "toy",
        model_name="toy",
        max_request_bytes=MAX_BYTES,
        rest_api_enable_cors_support=True,
    ).ready()
    before = forwarded(server)
    for asked in OVER_HTTP:
        start = f"{asked.method} {asked.path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode()
        found = answer(server, post(asked.body, *asked.headers, start=start))
        assert (status(found), asked.text in found.decode()) == (asked.status, True), (asked.path, found)
    with H2Client(server.grpc_port) as client:
        for content_type in ("application/grpc+proto", "application/grpc+json", "application/grpc;charset=utf-8"):
            assert client.call(USUAL, content_type=content_type).status == 0
        for body, code, text in OVER_GRPC:
            stream = client.begin(PREDICT)
            client.send(stream, body)
            got = client.answer(stream)
            assert (got.status, got.headers.get("grpc-message", "")) == (code, text)
    assert forwarded(server) - before == 1
    # Faults of clients are no faults of the server in metrics, whatever code gRPC gives them.
    failures = server.http.get("/v1/statusz").json()["recent_failures"]["counts"]
    assert "INTERNAL" not in {one["code"] for one in failures}


def test_callers_without_credentials_are_refused_by_the_core(tmp_path: Path, serve: Serve) -> None:
    write_toy_model(tmp_path / "toy" / "3")
    auth = tmp_path / "auth.toml"
    digest = sha256(b"token").hexdigest()
    allow = '[[caller.allow]]\nmodels = ["*"]\nrights = ["predict", "metadata"]\n'
    auth.write_text(f'[[caller]]\nname = "a"\ntoken_sha256 = ["{digest}"]\n{allow}')
    server = serve(model_base_path=tmp_path / "toy", model_name="toy", auth_config=auth).answering()
    server.http.headers["authorization"] = "Bearer token"
    before = forwarded(server)
    cookie = b"cookie: embedding_console=x"
    for path in (LOOKUP, "/v1/models/t%6Fy:lookup", INFER, "/v1/models/absent:predict"):
        for headers in ((), (b"authorization: Bearer x",), (b"authorization: Bearer token",) * 2, (cookie,)):
            start = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode()
            for body in (BODY, LONG):
                found = answer(server, post(body, *headers, start=start))
                assert (status(found), REFUSED in found.decode()) == (401, True), (path, found)
    with H2Client(server.grpc_port) as client:
        for more in ({}, {"authorization": "Bearer x"}):
            got = client.call(USUAL, **more)
            assert (got.status, got.headers["grpc-message"]) == (16, REFUSED)
        assert client.call(USUAL, authorization="Bearer token").status == 0
    assert forwarded(server) - before == 1
