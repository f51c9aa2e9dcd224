"""Paths are read as TensorFlow Serving's regular expressions read them; tests/conformance has the answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.http.middleware import IS_ENCODED, PathCaseMiddleware, lowered


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
