"""Adds the route of the status page: HTML for browsers, JSON for other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.http import openapi
from service.http.routing import add_route
from service.http.sign_in_page import wants_html

PATH = "/v1/statusz"
# The page has styles of its own, and no scripts.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}


def add_statusz_route(
    app: FastAPI, read: Callable[[], Mapping[str, Any]], page: Callable[[Mapping[str, Any]], str]
) -> None:
    """Adds the route of the status page.

    Args:
      read: gathers the page's content; may take a while. page: converts the content to HTML.
    """

    async def statusz(request: Request) -> Response:
        """Returns the status page: the server, its models, requests in flight, and the last errors."""
        is_html = wants_html(request.headers.get("accept", ""))

        def made() -> bytes:
            document = read()
            return page(document).encode() if is_html else orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)

        data = await asyncio.to_thread(made)
        headers = {"Vary": "Accept", "Cache-Control": "no-store", "Content-Security-Policy": _POLICY}
        return Response(data, headers=headers, media_type="text/html" if is_html else "application/json")

    answer: tuple[str, dict[str, Any], dict[str, Any]] = (
        "this server's state; text/html if Accept asks for it",
        _SCHEMA,
        {},
    )
    route = openapi.described("statusz", "Operations", "Status page", "", answer, errors=())
    add_route(app, PATH, statusz, "GET", route)
