"""Bodies are limited in size, plain and compressed."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

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
