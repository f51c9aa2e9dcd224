"""Adds the HTTP route that compares two versions of a model."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.engine.engine import Engine
from service.errors import InvalidRequest, Overloaded
from service.http import openapi
from service.http.diff_schemas import EXAMPLE
from service.http.json_schema import INTEGER, ref
from service.http.routing import add_route, model_ref, version_number

# Two threads suffice: one comparison of versions runs at a time, and the other thread returns results that are kept.
_NUM_THREADS = 2
_MAX_WAITING = 16
_PATH = "/v1/models/{model}/versions/{version}"


def add_diff_route(app: FastAPI, engine: Engine) -> None:
    """Adds the HTTP route that compares two versions, in threads that run no other requests."""
    threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="http-diff")
    waiting = 0

    async def diff(request: Request) -> Response:
        """Compares a version of a model with another one: rows, drift, neighbours."""
        nonlocal waiting
        where = model_ref(request)
        if not (to := request.query_params.get("to", "")):
            raise InvalidRequest("Name the version to compare with: versions/1:diff?to=2.")
        new, old = version_number(to), where.version
        assert old is not None  # The HTTP path of the route that compares (diffs) two versions always names a version.
        if waiting >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} comparisons of versions wait already; try again later.")
        waiting += 1
        try:
            # copy_context() carries the caller's rights (the grant) to the thread that compares the two versions.
            run, loop = copy_context().run, asyncio.get_running_loop()
            found = await loop.run_in_executor(threads, run, engine.diff, where.name, old, new)
        finally:
            waiting -= 1
        return Response(orjson.dumps(found), media_type="application/json")

    answer = ("What changed from the version to version `to`", ref("VersionDiff"), {"a rotation": EXAMPLE})
    to_version = {"name": "to", "in": "query", "required": True, "schema": INTEGER, "example": 2}
    route = openapi.described("diff", "Versions", "Compare two versions", _PATH, answer, query=[to_version])
    add_route(app, _PATH + ":diff", diff, "GET", route)
