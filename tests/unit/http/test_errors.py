"""Errors become answers over HTTP and lines in the log."""

from __future__ import annotations

import json

import pytest

from service.errors import MalformedPayload
from service.http.errors import service_error_response


def test_neither_the_answer_nor_the_log_quotes_megabytes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        response = service_error_response(MalformedPayload("x" * 1_000_000), "id")
    text = json.loads(bytes(response.body))["error"]
    assert text.endswith("x...TRUNCATED") and len(text) < 5000
    (record,) = caplog.records
    assert len(record.getMessage()) < 5000
