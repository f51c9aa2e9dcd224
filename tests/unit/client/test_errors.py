"""The client has an error class for every code of google.rpc, also for statuses of other servers and of proxies."""

from __future__ import annotations

import pickle
from http.client import BadStatusLine

import grpc
import pytest

from embedding_client import errors
from embedding_client.errors import EmbeddingError
from embedding_client.http_answers import checked, no_connection
from embedding_client.targets import parse_target
from service.errors import ArtifactError, ServiceError
from service.http.errors import HTTP_STATUS, service_error_response

CODES = [code.name for code in grpc.StatusCode if code.name != "OK"]


@pytest.mark.parametrize("code", CODES)
def test_every_code_stands_in_the_docstring_beside_its_class(code: str) -> None:
    error = errors.error_of(code, "text", 2.0)
    (line,) = [line for line in (errors.__doc__ or "").splitlines() if code in line.split()]
    assert type(error).__name__ == line.split()[0]
    assert (error.code, error.message, error.retry_after_s, error.attempts) == (code, "text", 2.0, 0)


def test_an_error_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(errors.error_of("UNAVAILABLE", "text", 1.5)))
    assert (type(error), error.code, error.message, error.retry_after_s) == (
        errors.Unavailable,
        "UNAVAILABLE",
        "text",
        1.5,
    )


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


def test_a_port_that_answers_no_http_may_have_tls() -> None:
    broken = BadStatusLine("\x15\x03\x03\x00\x02\x02")
    assert "begin the target with https://" in str(no_connection(parse_target("http://h:1"), broken))
    assert "begin the target" not in str(no_connection(parse_target("https://h:1"), broken))
