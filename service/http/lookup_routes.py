"""Adds this server's own HTTP routes, which TensorFlow Serving lacks: lookups by feature, the list of tables, and rows
of a table.
"""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.bound import Bound
from service.engine.engine import Engine
from service.engine.instead import headers_of, noting
from service.errors import IdsTooMany
from service.http import openapi
from service.http.calls import Answered, Calls, Method, json_response
from service.http.routing import add_route, model_ref
from service.types import ModelRef
from service.wire.json_lookup import (
    LookupBody,
    decode_features,
    decode_lookup,
    decode_rows,
    encode_lookup,
    encode_rows,
)
from service.wire.json_table_view import encode_tables


def add_lookup_routes(app: FastAPI, engine: Engine, calls: Calls, max_table_rows: int, *, strict_json: bool) -> None:
    """Adds the routes of lookups, the list of tables, and rows of a table.

    Args:
      strict_json: refuses bare NaN and Infinity in bodies, and writes null for them.
    """
    lookup_method = Method(partial(decode_lookup, strict=strict_json), partial(_lookup, strict_json), name="lookup")

    async def lookup(request: Request) -> Response:
        """Returns, for each feature that was sent, one combined vector for each row of ids."""
        return json_response(await calls.answer(request, model_ref(request), lookup_method))

    async def tables(request: Request) -> Response:
        """Lists, as JSON, the embedding tables of a model version."""
        return Response(encode_tables(engine.tables(model_ref(request))), media_type="application/json")

    async def rows(request: Request) -> Response:
        """Returns, as JSON, the rows of a table for the ids in the request, not combined."""
        ref = model_ref(request)
        work = partial(_rows, strict_json, engine, ref, request.path_params["table"], max_table_rows)
        may_wait = engine.may_wait(ref, request.path_params["table"])
        return json_response(await calls.read(request, ref.name, work, may_wait=may_wait))

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":lookup", lookup, "POST", openapi.lookup(path))
        add_route(app, path + "/tables", tables, "GET", openapi.tables(path))
        add_route(app, path + "/tables/{table}:rows", rows, "POST", openapi.rows(path))


def _lookup(strict_json: bool, bound: Bound, body: LookupBody) -> bytes:
    return encode_lookup(bound.run(decode_features(body, bound.spec)), strict=strict_json)


def _rows(strict_json: bool, engine: Engine, ref: ModelRef, table: str, max_rows: int, body: bytes) -> Answered[bytes]:
    ids = decode_rows(body)
    # The number of ids is limited too, because an id of two characters asks for a row of thousands of bytes: the limit
    # on bodies does not limit answers.
    if ids.size > max_rows:
        raise IdsTooMany(f'input "ids": {ids.size} ids, the limit is {max_rows} per request.')
    with noting() as noted:
        found = engine.table_rows(ref, table, ids)
    return Answered(encode_rows(found.rows, strict=strict_json), found.version, headers_of(noted))
