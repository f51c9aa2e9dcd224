"""Adds the route of the status page."""

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

PATH = "/v1/statusz"
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2


def add_statusz_route(app: FastAPI, read: Callable[[], Mapping[str, Any]]) -> None:
    """Adds the route of the status page. read: gathers the page's content; may take a while."""

    async def statusz(request: Request) -> Response:
        """Returns the status page: the server, its models, requests in flight, and the last errors."""
        data = await asyncio.to_thread(lambda: orjson.dumps(read(), option=_OPTIONS))
        return Response(data, headers={"Cache-Control": "no-store"}, media_type="application/json")

    answer: tuple[str, dict[str, Any], dict[str, Any]] = ("this server's state", {"type": "object"}, {})
    route = openapi.described("statusz", "Operations", "Status page", "", answer, errors=())
    add_route(app, PATH, statusz, "GET", route)
