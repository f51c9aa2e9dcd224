"""Statuses as codes, and texts of servers and of proxies."""

from __future__ import annotations

import pytest

from service.client.errors import EmbeddingError
from service.client.http_answers import checked
from service.core.errors import ArtifactError, ConfigConflict, ReloadFailed, ServiceError
from service.transports.http.errors import HTTP_STATUS, service_error_response

# An artifact's error ends as a version's state and never answers a request; the other two answer a reload, over gRPC.
SENT = [cls for cls in HTTP_STATUS if cls not in (ArtifactError, ConfigConflict, ReloadFailed)]


@pytest.mark.parametrize("cls", SENT, ids=lambda cls: cls.__name__)
def test_every_error_of_the_server_has_grpcs_code_again(cls: type[ServiceError]) -> None:
    # Only these of the 400s are FAILED_PRECONDITION, and only their text tells it.
    texts = {
        "SignatureNotFound": 'Serving signature key "x" not found.',
        "NotBatchable": "Batched output tensor has 0 dimensions",
        "GraphUnavailable": 'Signature "x" runs a TensorFlow graph and this server runs without TensorFlow.',
    }
    response = service_error_response(cls(texts.get(cls.__name__, "text")), "id")
    with pytest.raises(EmbeddingError) as caught:
        checked(response.status_code, bytes(response.body), response.headers.get("Retry-After"))
    assert caught.value.code == cls.code
    assert caught.value.retry_after_s == (1 if cls.__name__ == "Overloaded" else None)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (405, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED")]
    + [(499, "CANCELLED"), (501, "UNIMPLEMENTED"), (502, "UNAVAILABLE"), (302, "UNKNOWN"), (507, "UNKNOWN")],
)
def test_what_lies_between_has_codes_too(status: int, code: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(status, b"<html>a page</html>", None)
    assert (caught.value.code, caught.value.message) == (code, "<html>a page</html>")


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"", "HTTP status 503 without a text."), (b'{"error": 5}', '{"error": 5}'), (b"[]", "[]"), (b"\xff", "�")],
)
def test_any_body_makes_a_text(body: bytes, text: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, body, None)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("-1", None), ("", None)]
)
def test_retry_after_is_seconds(header: str | None, seconds: float | None) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, b"", header)
    assert caught.value.retry_after_s == seconds


def test_a_good_answer_is_its_body() -> None:
    assert checked(200, b"x", None) == b"x"
