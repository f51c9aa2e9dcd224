"""Adds the HTTP route that searches a table for the rows that are nearest to given rows or vectors."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.call import Call
from service.engine.engine import Engine
from service.errors import ServiceError
from service.http.calls import Answered, Calls, json_response
from service.http.neighbor_openapi import neighbors as described_neighbors
from service.http.routing import add_route, model_ref
from service.types import ModelRef
from service.wire.json_neighbors import decode_neighbors, encode_neighbors


def add_neighbor_routes(app: FastAPI, engine: Engine, calls: Calls) -> None:
    """Adds the HTTP route that finds nearest rows."""

    async def neighbors(request: Request) -> Response:
        """Returns the rows of a table that are nearest to each row or vector that the request names."""
        ref = model_ref(request)
        work = partial(_neighbors, engine, ref, request.path_params["table"])
        return json_response(await calls.search(request, ref.name, work))

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + "/tables/{table}:neighbors", neighbors, "POST", described_neighbors(path))


def _neighbors(engine: Engine, ref: ModelRef, table: str, body: bytes, call: Call) -> Answered[bytes]:
    try:
        query = decode_neighbors(body)
    except ServiceError as error:
        engine.reject(error, call, model=ref.name)
        raise
    found = engine.neighbors(ref, table, query, call)
    return Answered(encode_neighbors(found), found.version)
