"""Adds the routes that show a table to people: pages of rows, one row by id or key, and a 2-D map of the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.control.engine import Engine
from service.control.table_view import (
    MAX_PAGE_ROWS,
    MAX_POINTS,
    FoundRow,
    KeptMaps,
    find_rows,
    ids_on_map,
    project,
    read_names,
    read_page,
    read_row,
)
from service.errors import InvalidRequest, Overloaded
from service.http.routing import add_model_route, model_ref, version_number
from service.types import ModelRef, TableInfo
from service.wire.json_body import dump_plain, encode_drift, encode_projection

# Largest number of requests to this file's routes (lists of a table's rows, single rows, 2-D maps) that run at a time;
# further requests get the error Overloaded.
MAX_READS = 4
_DEFAULT_COUNT = 50

T = TypeVar("T")


def add_table_view_routes(app: FastAPI, engine: Engine) -> Callable[[], None]:
    """Adds the routes for pages, rows and maps of tables; returns a function that ends the thread that makes maps."""
    reads = 0
    maps: KeptMaps[bytes] = KeptMaps()

    async def in_thread(work: Callable[[], T]) -> T:
        nonlocal reads
        if reads >= MAX_READS:
            raise Overloaded(f"{MAX_READS} requests for pages and rows of tables run already; try again.")
        reads += 1
        try:
            return await asyncio.to_thread(work)
        finally:
            reads -= 1

    async def page(request: Request) -> Response:
        """Returns, as JSON, the keys and norms of consecutive rows of a table."""
        start, count = _number(request, "start", 0), _number(request, "count", _DEFAULT_COUNT)
        work = partial(read_page, engine, model_ref(request), request.path_params["table"], start, count)
        return _answer(dump_plain(await in_thread(work)))

    async def row(request: Request) -> Response:
        """Returns one row of a table by its id or its key: values, norm, and the delta that wrote it."""
        key = request.query_params.get("key")
        if (key is None) == ("id" not in request.query_params):
            raise InvalidRequest("Give either id or key.")
        number = None if key is not None else _number(request, "id", 0)
        feature = request.query_params.get("feature", "")
        work = partial(read_row, engine, model_ref(request), request.path_params["table"], number, key or "", feature)
        return _answer(dump_plain(await in_thread(work)))

    async def projection(request: Request) -> Response:
        """Returns a map (a 2-D projection) of a table's rows, or status 202 while a thread computes the map."""
        work = partial(_projection, engine, maps, model_ref(request), request.path_params["table"])
        return _answer_or_wait(await in_thread(work))

    async def drift(request: Request) -> Response:
        """Returns the drift of each row on a table's 2-D map since another version; status 202 while it is computed."""
        if not (older := request.query_params.get("from", "")):
            raise InvalidRequest("Name the version to compare with: versions/2/tables/T:drift?from=1.")
        work = partial(_drift, engine, maps, model_ref(request), request.path_params["table"], version_number(older))
        return _answer_or_wait(await in_thread(work))

    async def names(request: Request) -> Response:
        """Returns the keys and label of each row on a table's 2-D map, or status 202 while a thread reads them."""
        return _answer_or_wait(
            await in_thread(partial(_names, engine, maps, model_ref(request), request.path_params["table"]))
        )

    async def find(request: Request) -> Response:
        """Returns the rows whose labels contain a text, or all rows that a text may mean."""
        query, most = request.query_params, _number(request, "count", _DEFAULT_COUNT)
        label, text = query.get("label", ""), query.get("text", "")
        if bool(label) == bool(text) or not 0 < most <= MAX_PAGE_ROWS:
            raise InvalidRequest(f"Give a text as label or as text, and count from 1 to {MAX_PAGE_ROWS}.")
        asked = model_ref(request), request.path_params["table"], label or text, most

        def search() -> bytes:
            if text:
                return dump_plain({"rows": find_rows(engine, *asked)})
            return dump_plain({"rows": [FoundRow(row, found, "label") for row, found in engine.find_labels(*asked)]})

        return _answer(await in_thread(search))

    add_model_route(app, "/tables/{table}:page", page, "GET", "pageRows")
    add_model_route(app, "/tables/{table}:row", row, "GET", "showRow")
    add_model_route(app, "/tables/{table}:projection", projection, "GET", "projectTable")
    add_model_route(app, "/tables/{table}:drift", drift, "GET", "driftOfTable")
    add_model_route(app, "/tables/{table}:names", names, "GET", "namesOfMap")
    add_model_route(app, "/tables/{table}:find", find, "GET", "findRows")
    return maps.close


def _projection(engine: Engine, maps: KeptMaps[bytes], ref: ModelRef, table: str) -> bytes | None:
    ref, version, total, info = _mapped(engine, ref, table)

    def make() -> bytes:
        found = project(lambda ids: engine.table_rows(ref, table, ids).rows, total, max_points=MAX_POINTS)
        return encode_projection(found, version, total)

    return maps.get((ref.name, version, table), info, make)


def _drift(engine: Engine, maps: KeptMaps[bytes], ref: ModelRef, table: str, older: int) -> bytes | None:
    ref, version, total, info = _mapped(engine, ref, table)

    def make() -> bytes:
        cosines, is_aligned = engine.drift(ref.name, table, older, version, ids_on_map(total))
        return encode_drift(cosines, version, older, is_aligned=is_aligned)

    return maps.get((ref.name, version, table, older), info, make)


def _names(engine: Engine, maps: KeptMaps[bytes], ref: ModelRef, table: str) -> bytes | None:
    ref, version, total, info = _mapped(engine, ref, table)

    def make() -> bytes:
        return dump_plain({"version": version} | read_names(engine, ref, table, ids_on_map(total))._asdict())

    return maps.get((ref.name, version, table, "names"), info, make)


def _mapped(engine: Engine, ref: ModelRef, table: str) -> tuple[ModelRef, int, int, TableInfo]:
    version = engine.describe(ref).version
    ref = ModelRef(ref.name, version)
    if engine.may_wait(ref, table):
        raise InvalidRequest(f'Table "{table}" is read from a cluster, so it has no map.')
    # Reading one row raises an error if the caller has no right to read rows. A cached 2-D map of the table must not
    # bypass this check.
    page = read_page(engine, ref, table, 0, 1)
    (info,) = (info for info in engine.tables(ref) if info.name == table)
    return ref, version, page.total, info


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"{name} must be a number of 0 or more, got {text[:40]!r}.")
    return int(text)


def _answer_or_wait(data: bytes | None) -> Response:
    return _answer(b'{"state":"computing"}', 202) if data is None else _answer(data)


def _answer(data: bytes, status: int = 200) -> Response:
    return Response(data, status, headers={"Cache-Control": "no-store"}, media_type="application/json")
