"""Rows of a table changed by request, for those who may."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.codecs.json_upsert import decode_upsert, encode_receipt
from service.core.engine import Engine
from service.core.types import ModelRef
from service.transports.http import openapi
from service.transports.http.body import read_body
from service.transports.http.routing import add_route, model_ref

# They wait for the disk, one after the other in any case: the journal has one writer at a time.
_NUM_THREADS = 4


def add_upsert_routes(app: FastAPI, engine: Engine, max_body_bytes: int) -> None:
    """Adds the route that changes rows; an application that has it is for operators and trainers."""
    threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="http-upsert")

    async def upsert(request: Request) -> Response:
        """Changes rows of a table for good, in all workers."""
        body = await read_body(request, max_body_bytes)
        work = (engine, model_ref(request), request.path_params["table"], body)
        # Not given up at a deadline: what is on disk is on disk, and who sent it must be told.
        answer = await asyncio.get_running_loop().run_in_executor(threads, _upsert, *work)
        return Response(answer, media_type="application/json")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + "/tables/{table}:upsert", upsert, "POST", **_described(path))


def _upsert(engine: Engine, ref: ModelRef, table: str, body: bytes) -> bytes:
    return encode_receipt(engine.upsert(ref, table, decode_upsert(body)))


def _described(path: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {
            "ids": {"type": "array", "items": {"type": "integer"}},
            "keys": {"type": "array", "items": {}, "description": "In place of ids, of the table's vocabulary."},
            "feature": {"type": "string", "description": "Whose vocabulary, where the table's features differ."},
            "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "force": {"type": "boolean", "default": False},
        },
    }
    examples = {
        "by id": {"ids": [50, 1], "rows": [[0.1, -0.2], [0.3, 0.4]]},
        "by key": {"keys": ["Comedy"], "rows": [[0.5, 0.25]]},
    }
    receipt = {"model": "movielens", "version": 1, "table": "film", "sequence": 8, "rows": 2, "is_visible": True}
    answer = ("On disk, and answered from now on", {"type": "object"}, {"two rows": receipt})
    return openapi.described(
        "Operations", "Change rows of a table", path + "/tables/{table}", answer, body=(schema, examples)
    )
