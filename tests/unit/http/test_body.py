"""Bodies are limited and decompressed, answers compressed, paths read as TensorFlow Serving does, and errors cut."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from service.errors import MalformedPayload
from service.http.errors import service_error_response
from service.http.middleware import IS_ENCODED, GzipMiddleware, PathCaseMiddleware, accepts_gzip, lowered
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import MAX_BODY_BYTES, QUERY, SEARCH, Http, chunks, error_text

BODY = json.dumps(QUERY).encode()
GZIP = {"Content-Encoding": "gzip"}


def padded(size: int) -> bytes:
    """Returns a valid body with this many bytes."""
    return BODY + b" " * (size - len(BODY))


def test_a_body_at_the_limit_is_taken_and_one_over_it_refused(http: Http, observer: RecordingObserver) -> None:
    assert http.post(SEARCH, content=padded(MAX_BODY_BYTES)).status_code == 200
    response = http.post(SEARCH, content=padded(MAX_BODY_BYTES + 1))
    assert response.status_code == 413
    assert error_text(response) == "The body of 4097 bytes is over the limit of 4096 bytes."
    assert observer.finished_requests[-1]["error"].code == "RESOURCE_EXHAUSTED"


def test_a_body_of_undeclared_length_is_stopped_while_it_arrives(http: Http) -> None:
    pulled = []

    async def endless():  # type: ignore[no-untyped-def]
        for number in range(1000):
            pulled.append(number)
            yield b" " * 1000

    response = http.post(SEARCH, content=endless())
    assert (response.status_code, error_text(response)) == (413, "The body is over the limit of 4096 bytes.")


def test_a_body_may_come_in_pieces(http: Http) -> None:
    assert http.post(SEARCH, content=chunks(BODY[:5], b"", BODY[5:])).status_code == 200


def test_a_gzip_body_may_come_in_pieces_and_in_members(http: Http) -> None:
    members = gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])
    assert http.post(SEARCH, content=members, headers=GZIP).status_code == 200
    pieces = chunks(*(bytes([byte]) for byte in members))
    assert http.post(SEARCH, content=pieces, headers=GZIP).status_code == 200


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 50_000_000])
def test_a_gzip_body_is_bounded_by_what_it_becomes(http: Http, size: int) -> None:
    response = http.post(SEARCH, content=gzip.compress(padded(size), 9)[:MAX_BODY_BYTES], headers=GZIP)
    assert response.status_code == 413
    assert error_text(response) == "The decompressed body is over the limit of 4096 bytes."


def test_a_gzip_body_at_the_limit_is_taken(http: Http) -> None:
    assert http.post(SEARCH, content=gzip.compress(padded(MAX_BODY_BYTES)), headers=GZIP).status_code == 200


@pytest.mark.parametrize(
    "body", [BODY, gzip.compress(BODY, mtime=0)[:-3], gzip.compress(BODY, mtime=0) + b"junk", b"", zlib.compress(BODY)]
)
def test_what_is_not_gzip_is_refused(http: Http, body: bytes) -> None:
    response = http.post(SEARCH, content=body, headers=GZIP)
    assert response.status_code == 400
    assert error_text(response).startswith("The body is not valid gzip data")


def test_a_deflate_body_is_zlibs_form_and_bounded_like_gzip(http: Http) -> None:
    headers = {"Content-Encoding": "deflate"}
    assert http.post(SEARCH, content=zlib.compress(BODY), headers=headers).status_code == 200
    assert http.post(SEARCH, content=zlib.compress(padded(MAX_BODY_BYTES)), headers=headers).status_code == 200
    assert http.post(SEARCH, content=zlib.compress(padded(MAX_BODY_BYTES + 1)), headers=headers).status_code == 413
    for body in (BODY, zlib.compress(BODY)[:-3], gzip.compress(BODY, mtime=0), b""):
        response = http.post(SEARCH, content=body, headers=headers)
        assert response.status_code == 400
        assert error_text(response).startswith("The body is not valid deflate data")


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip"])
def test_other_encodings_are_refused(http: Http, encoding: str) -> None:
    response = http.post(SEARCH, content=BODY, headers={"Content-Encoding": encoding})
    assert response.status_code == 400
    assert error_text(response) == f"Content-Encoding '{encoding}' is not supported; send gzip, deflate or none."


def test_identity_is_no_encoding(http: Http) -> None:
    assert http.post(SEARCH, content=BODY, headers={"Content-Encoding": "identity"}).status_code == 200


MIN_BYTES = 100


# The second client refuses gzip by the weight 0, and the answer says that another client would get it compressed.
@pytest.mark.parametrize(
    ("accepted", "size", "headers"),
    [
        (b"GZIP;q=0.5", MIN_BYTES, {b"content-encoding": b"gzip", b"vary": b"Accept-Encoding"}),
        (b"gzip;q=0", MIN_BYTES, {b"vary": b"Accept-Encoding"}),
        (b"gzip", MIN_BYTES - 1, {}),
    ],
)
def test_a_large_answer_is_compressed_for_who_accepts_it(
    accepted: bytes, size: int, headers: dict[bytes, bytes]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1" * size})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"accept-encoding", accepted)]}
    asyncio.run(GzipMiddleware(app, MIN_BYTES)(scope, None, send))  # type: ignore[arg-type]
    start, body = sent
    found = dict(start["headers"])
    found.pop(b"content-length", None)
    assert found == headers
    assert (gzip.decompress(body["body"]) if b"content-encoding" in headers else body["body"]) == b"1" * size


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        (b"gzip", True),
        (b"deflate, GZIP ; q=0.1", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"*", False),
        (b"", False),
    ],
)
def test_what_a_client_accepts(accepted: bytes, expected: bool) -> None:
    assert accepts_gzip({"headers": [(b"accept-encoding", accepted)]}) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/V1/MODELS/Mm:predict", "/v1/models/Mm:predict"),
        ("/v1/models/Mm/LABELS/Ab:predict", "/v1/models/Mm/labels/Ab:predict"),
        ("/v1/models/Mm/Versions/1/METADATA", "/v1/models/Mm/versions/1"),
        ("/v1/models/Mm/metadata", "/v1/models/Mm/metadata"),
        ("/v1/models/Mm:PREDICT", "/v1/models/Mm:PREDICT"),
        ("/v1/models/a\nB:predict", "/v1/models/a\nB:predict"),
        ("/Healthz", "/Healthz"),
    ],
)
def test_fixed_parts_are_lowered_and_names_kept(path: str, expected: str) -> None:
    assert lowered(path) == expected


@pytest.mark.parametrize(
    ("path", "raw", "passed", "is_encoded"),
    [
        ("/v1/models/a/b:predict", b"/v1/models/a%2Fb:predict?x=%2F", "/v1/models/a%2Fb:predict", True),
        ("/v1/models/a b:predict", b"/v1/models/a%20b:predict", "/v1/models/a b:predict", False),
        ("/V1/models/a:b", b"/V1/models/a%3ab", "/v1/models/a%3ab", True),
        ("/v1/models/m", None, "/v1/models/m", False),
    ],
)
def test_names_that_hide_a_separator_stay_encoded(path: str, raw: bytes | None, passed: str, is_encoded: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    asyncio.run(PathCaseMiddleware(app)({"type": "http", "path": path, "raw_path": raw}, None, None))  # type: ignore[arg-type]
    assert (seen[0]["path"], IS_ENCODED in seen[0]) == (passed, is_encoded)


def test_neither_the_answer_nor_the_log_quotes_megabytes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        response = service_error_response(MalformedPayload("x" * 1_000_000), "id")
    text = json.loads(bytes(response.body))["error"]
    assert text.endswith("x...TRUNCATED") and len(text) < 5000
    (record,) = caplog.records
    assert len(record.getMessage()) < 5000
