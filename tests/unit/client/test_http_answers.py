"""Statuses as codes, and texts of servers and of proxies."""

from __future__ import annotations

import pytest

from embedding_client.errors import EmbeddingError
from embedding_client.http_answers import checked
from service.errors import ArtifactError, ServiceError
from service.http.errors import HTTP_STATUS, service_error_response

# An ArtifactError becomes the state of a version, and is never the answer to a request.
SENT = [cls for cls in HTTP_STATUS if cls is not ArtifactError]


@pytest.mark.parametrize("cls", SENT, ids=lambda cls: cls.__name__)
def test_every_error_of_the_server_has_grpcs_code_again(cls: type[ServiceError]) -> None:
    response = service_error_response(cls("text"), "id")
    with pytest.raises(EmbeddingError) as caught:
        checked(response.status_code, bytes(response.body), response.headers.get)
    assert caught.value.code == cls.code
    assert caught.value.retry_after_s == (1 if cls.__name__ == "Overloaded" else None)


def test_tensorflow_serving_has_no_header_that_tells_a_missing_signature_from_other_faults() -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(400, b'{"error": "Serving signature name: \\"x\\" not found in signature def"}', {}.get)
    assert caught.value.code == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (405, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED")]
    + [(499, "CANCELLED"), (501, "UNIMPLEMENTED"), (502, "UNAVAILABLE"), (302, "UNKNOWN"), (507, "UNKNOWN")],
)
def test_what_lies_between_has_codes_too(status: int, code: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(status, b"<html>a page</html>", {}.get)
    assert (caught.value.code, caught.value.message) == (code, "<html>a page</html>")


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"", "HTTP status 503 without an error text."), (b'{"error": 5}', '{"error": 5}'), (b"[]", "[]"), (b"\xff", "�")],
)
def test_any_body_makes_a_text(body: bytes, text: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, body, {}.get)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("-1", None), ("", None)]
)
def test_retry_after_is_seconds(header: str | None, seconds: float | None) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, b"", {"Retry-After": header}.get)
    assert caught.value.retry_after_s == seconds


def test_a_good_answer_is_its_body() -> None:
    assert checked(200, b"x", {}.get) == (b"x", None, None)


@pytest.mark.parametrize(("header", "version"), [("3", 3), ("0", 0), (None, None), ("x", None), ("-1", None)])
def test_a_header_names_the_version(header: str | None, version: int | None) -> None:
    assert checked(200, b"", {"X-Model-Version": header}.get).version == version
