"""Adds the HTTP route of the admin port that changes rows of a table."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.admission import Admission, Reservation
from service.engine.engine import Engine
from service.http.body import read_body
from service.http.routing import add_route, model_ref
from service.types import ModelRef
from service.wire.json_upsert import decode_upsert, encode_receipt

# Number of threads for upserts. Few are enough: they wait for the disk, and a journal has one writer at a time.
_NUM_THREADS = 4


def add_upsert_routes(app: FastAPI, engine: Engine, max_body_bytes: int) -> None:
    """Adds to the admin application, which operators and trainers use, the route that changes rows of a table."""
    threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="http-upsert")

    async def upsert(request: Request) -> Response:
        """Handles an upsert request, which changes rows of a table permanently."""
        # The bytes of an upsert's body are not counted against the server's limits, as in the other admin routes.
        body = await read_body(request, max_body_bytes, Reservation(Admission(), ""))
        work = (engine, model_ref(request), request.path_params["table"], body)
        # An upsert has no deadline, because the client must learn whether the rows are on disk. copy_context() carries
        # the caller's rights (the grant) to the thread.
        answer = await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, _upsert, *work)
        return Response(answer, media_type="application/json")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + "/tables/{table}:upsert", upsert, "POST")


def _upsert(engine: Engine, ref: ModelRef, table: str, body: bytes) -> bytes:
    return encode_receipt(engine.upsert(ref, table, decode_upsert(body)))
