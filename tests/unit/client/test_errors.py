"""The client has an error class for every code of google.rpc, whose docstring names the code."""

from __future__ import annotations

import pickle

import grpc
import pytest

from embedding_client import errors

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
