"""Errors have codes and statuses, each with a row of documentation; clocks count on."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import grpc
import pytest

from service import errors
from service.grpc.refusals import STATUS_CODES, details
from service.http.errors import HTTP_STATUS
from tests.unit.http.conftest import all_errors


def leaves(cls: type[errors.ServiceError] = errors.ServiceError) -> list[type[errors.ServiceError]]:
    """Returns the subclasses of an error that have no subclasses."""
    below = cls.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [cls]


def test_every_leaf_has_a_canonical_code_and_its_place_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    words = errors.__doc__.split()
    assert {cls for cls in leaves() if cls.code not in get_args(errors.Code) or words.count(cls.__name__) != 1} == set()
    # Only a fault of the server is internal.
    assert [cls for cls in leaves() if cls.code == "INTERNAL"] == [errors.BackendFailure]


def test_message_is_the_text_without_the_class() -> None:
    assert errors.IdOutOfRange("id 7 of 5").message == "id 7 of 5"
    assert errors.IdOutOfRange().message == "IdOutOfRange"


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


def test_every_error_and_nothing_else_has_a_status_on_both_wires() -> None:
    assert {cls: _BY_CODE[cls.code] for cls in all_errors()} == HTTP_STATUS
    codes = {cls.code for cls in all_errors()}
    assert {code: STATUS_CODES[code] for code in codes} == {code: grpc.StatusCode[code] for code in codes}


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


SERVICE = Path(__file__).parents[2] / "service"
MAY_READ_THE_WALL = {
    # It computes the age of a file, whose time is from the file system's clock.
    "versions/loads.py",
    # The end of a certificate is a time of the calendar.
    "access/tls.py",
    # A session of the console ends at the same wall-clock time on all replicas.
    "access/sessions.py",
    # These modules put times into the names of files, or show them to people.
    "core/statistics.py",
    "observe/request_logs.py",
    "observe/statusz.py",
    "observe/history.py",
    # It reads the time at which a row is changed, for the console.
    "deltas/version_deltas.py",
}
_WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def test_the_wall_clock_is_read_for_nothing_else() -> None:
    reading = {
        str(file.relative_to(SERVICE))
        for file in SERVICE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in _WALL
    }
    assert reading == MAY_READ_THE_WALL
