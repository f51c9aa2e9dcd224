"""Adds the HTTP route that searches a table for the rows that are nearest to given rows or vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import DeadlineExceeded, ServiceError
from service.http.body import read_body
from service.http.counting import named_model
from service.http.routing import add_model_route, model_ref
from service.types import ModelRef
from service.versions.neighbors import SIGNATURE
from service.wire.api import HTTP_API
from service.wire.json_body import decode_neighbors, encode_neighbors


def add_neighbor_routes(app: FastAPI, engine: Engine, *, max_body_bytes: int, timeout_s: float) -> Callable[[], None]:
    """Adds the HTTP route that finds nearest rows; returns a function that ends the searches' threads.

    Args:
      max_body_bytes: largest body, compressed or not.
      timeout_s: timeout of a whole request, waiting for a thread included.
    """

    async def neighbors(request: Request) -> Response:
        """Returns the rows of a table that are nearest to each row or vector that the request names."""
        deadline_s = engine.clock() + timeout_s
        call = Call(HTTP_API, SIGNATURE, deadline_s=deadline_s)
        try:
            ref = model_ref(request)
            body = await read_body(request, max_body_bytes)
        except ServiceError as error:
            engine.reject(error, call, model=named_model(request.scope))
            raise
        # The request's time in metrics begins when its whole body has arrived, because the server does not control how
        # fast a client sends it.
        call = replace(call, started_s=engine.clock())
        work = partial(_neighbors, engine, ref, request.path_params["table"], body, call)
        running = engine.searches.submit(work)
        try:
            answer, version = await asyncio.wait_for(asyncio.wrap_future(running), max(deadline_s - engine.clock(), 0))
        except TimeoutError:
            late = DeadlineExceeded(f"Timed out: the request took longer than {timeout_s:g} s.")
            if running.cancelled():
                # A search that runs already counts itself when it ends.
                engine.reject(late, call, model=ref.name)
            raise late from None
        return Response(answer, headers={"X-Model-Version": str(version)}, media_type="application/json")

    add_model_route(app, "/tables/{table}:neighbors", neighbors, "POST", "findNeighbors")

    return engine.searches.close


def _neighbors(engine: Engine, ref: ModelRef, table: str, body: bytes, call: Call) -> tuple[bytes, int]:
    try:
        query = decode_neighbors(body)
    except Exception as error:
        engine.reject(error, call, model=ref.name)
        raise
    found = engine.neighbors(ref, table, query, call)
    return encode_neighbors(found), found.version
