"""Adds the HTTP route that tells which rows of a table lookups read most."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.engine import Engine
from service.engine.hot_rows import DEFAULT_HOT_ROWS, MAX_HOT_ROWS, TableTraffic
from service.errors import InvalidRequest
from service.http import openapi
from service.http.json_schema import Json, ref
from service.http.routing import add_route, model_ref

_EXAMPLE: Json = {
    "model": "movielens",
    "version": 1,
    "table": "film",
    "lookups": 160_000,
    "distinct": 1201,
    "max_overcount": 0,
    "sampled": 5000,
    "oov_keys": 3,
    "rows": [{"id": 50, "key": None, "label": "Star Wars (1977)", "lookups": 4800, "share": 0.03}],
    "features": {"film_id": {"ids": 160_010, "unknown_ids": 10, "default_ids": 0}},
}


def add_hot_rows_route(app: FastAPI, engine: Engine) -> None:
    """Adds the HTTP route that lists the rows of a table that lookups read most."""

    async def hot(request: Request) -> Response:
        """Answers with the rows of a table that lookups read most, and with their counts."""
        where, table, most = model_ref(request), request.path_params["table"], _most(request)
        # A thread gathers the hot rows: sorting their counts and reading keys from the disk would block the event loop.
        found = await asyncio.to_thread(copy_context().run, engine.traffic, where, table, most)
        return Response(orjson.dumps(_document(found)), media_type="application/json")

    most: Json = {"type": "integer", "minimum": 1, "maximum": MAX_HOT_ROWS}
    parameter = {"name": "k", "in": "query", "schema": most, "description": f"Rows; {DEFAULT_HOT_ROWS} without it."}
    answer = ("Hot rows, the hottest first", ref("HotRowsResponse"), {"one row": _EXAMPLE})
    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where + "/tables/{table}"
        route = openapi.described("hotRows", "Versions", "Hot rows of a table", path, answer, query=[parameter])
        add_route(app, path + ":hot", hot, "GET", route)


def _most(request: Request) -> int:
    text = request.query_params.get("k", str(DEFAULT_HOT_ROWS))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_HOT_ROWS):
        raise InvalidRequest(f'Parameter "k" is {text!r}; expected a number of rows from 1 to {MAX_HOT_ROWS}.')
    return int(text)


def _document(found: TableTraffic) -> Json:
    return {
        **{name: getattr(found, name) for name in TableTraffic.__slots__ if name not in ("rows", "features")},
        "rows": [row._asdict() for row in found.rows],
        "features": {name: ids._asdict() for name, ids in found.features.items()},
    }
