"""Requests for models are traced over both APIs, and health checks are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

pytest.importorskip("opentelemetry.trace")

from service.observe.http_spans import HttpSpans


class Recorded:
    """In place of Spans: keeps the path of each span, and sets no attributes."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def remote_parent(self) -> None:
        return None

    @contextmanager
    def spanned(self, name: str, attributes: dict[str, Any], *rest: object) -> Iterator[Any]:
        self.paths.append(attributes["url.path"])
        yield self

    def set_attribute(self, name: str, value: object) -> None:
        pass


def test_checks_of_health_are_not_traced() -> None:
    spans = Recorded()
    app = HttpSpans(PlainTextResponse("answer"), spans)  # type: ignore[arg-type]
    paths = ["/healthz", "/readyz", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"]
    traced = ["/v1/models/m", "/v2/models/m/ready", "/v2/models/m/infer"]

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for path in paths + traced:
                assert (await client.get(path)).text == "answer"

    asyncio.run(ask())
    assert spans.paths == traced
