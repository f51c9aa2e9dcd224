"""Each class of errors has exactly one status over HTTP and one over gRPC."""

from __future__ import annotations

import grpc
import pytest

from service.errors import ServiceError
from service.grpc.refusals import STATUS_CODES, details
from service.http.errors import HTTP_STATUS
from tests.unit.http.conftest import all_errors

# HTTP statuses of google.rpc.Code. Errors for which TensorFlow Serving or HTTP wants another status are listed below.
_BY_CODE = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 400,
    "RESOURCE_EXHAUSTED": 413,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "DEADLINE_EXCEEDED": 504,
    "UNKNOWN": 500,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
}


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_a_status_on_both_wires(cls: type[ServiceError]) -> None:
    assert HTTP_STATUS[cls] == _BY_CODE[cls.code]
    assert STATUS_CODES[cls.code] is grpc.StatusCode[cls.code]


def test_the_table_has_nothing_else() -> None:
    assert set(HTTP_STATUS) == set(all_errors())


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("short", "short"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1024 + "...TRUNCATED"),
        ("x" * 1023 + "é", "x" * 1023 + "...TRUNCATED"),
        ("\ud800", "?"),
    ],
)
def test_grpc_details_are_valid_and_bounded(text: str, cut: str) -> None:
    assert details(text) == cut
