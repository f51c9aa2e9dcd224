"""Adds the routes of models: status, metadata, tables, hot rows, searches, comparisons, and those of the native core.

Source: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.artifact.signature_def import metadata_json
from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import DeadlineExceeded, InvalidRequest, Overloaded, ServiceError
from service.http.body import read_body
from service.http.counting import named_model
from service.http.routing import add_model_route, add_route, in_the_core, model_ref, version_number
from service.types import ModelRef
from service.versions.counts import DEFAULT_HOT_ROWS, MAX_HOT_ROWS, TableTraffic
from service.versions.neighbors import SIGNATURE
from service.wire.api import HTTP_API, statuses_json
from service.wire.json_body import decode_neighbors, encode_neighbors, encode_tables


def add_tfs_routes(app: FastAPI, engine: Engine) -> None:
    async def status(request: Request) -> Response:
        """Returns the states of a model's versions, newest version first."""
        # A label in the path of a status request is ignored, as in TensorFlow Serving.
        request.path_params.pop("label", None)
        ref = model_ref(request)
        return Response(statuses_json(engine.statuses(ref.name, ref.version)), media_type="application/json")

    async def metadata(request: Request) -> Response:
        """Returns a model's signatures."""
        description = engine.describe(model_ref(request))
        data = metadata_json(description.name, description.version, description.signatures)
        return Response(data, media_type="application/json")

    async def models(request: Request) -> Response:
        """Lists the models that the caller may see, with the states of their versions."""
        listed = [
            {"name": name, **orjson.loads(statuses_json(statuses))} for name, statuses in engine.all_statuses().items()
        ]
        return Response(orjson.dumps({"models": listed}), media_type="application/json")

    async def no_name(request: Request) -> Response:
        raise InvalidRequest("Missing model name in request.")

    for verb in ("predict", "classify", "regress"):
        add_model_route(app, ":" + verb, in_the_core, "POST", verb)
    add_model_route(app, "", status, "GET", "getStatus")
    add_model_route(app, "/metadata", metadata, "GET", "getMetadata")
    add_route(app, "/v1/models", models, "GET", "getModels")
    for where in ("/versions/{version:int}", "/labels/{label}"):
        add_route(app, "/v1/models" + where, no_name, "GET")
        add_route(app, f"/v1/models{where}/metadata", no_name, "GET")


def add_lookup_routes(app: FastAPI, engine: Engine) -> None:
    async def tables(request: Request) -> Response:
        """Lists, as JSON, the embedding tables of a model version."""
        return Response(encode_tables(engine.tables(model_ref(request))), media_type="application/json")

    add_model_route(app, ":lookup", in_the_core, "POST", "lookup")
    add_model_route(app, "/tables", tables, "GET", "listTables")
    add_model_route(app, "/tables/{table}:rows", in_the_core, "POST", "readRows")


def add_hot_rows_route(app: FastAPI, engine: Engine) -> None:
    async def hot(request: Request) -> Response:
        """Answers with the rows of a table that lookups read most, and with their counts."""
        where, table, most = model_ref(request), request.path_params["table"], _most(request)
        # A thread gathers the hot rows: sorting their counts and reading keys from the disk would block the event loop.
        found = await asyncio.to_thread(copy_context().run, engine.traffic, where, table, most)
        return Response(orjson.dumps(_document(found)), media_type="application/json")

    add_model_route(app, "/tables/{table}:hot", hot, "GET", "hotRows")


def _most(request: Request) -> int:
    text = request.query_params.get("k", str(DEFAULT_HOT_ROWS))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_HOT_ROWS):
        raise InvalidRequest(f'Parameter "k" is {text!r}; expected a number of rows from 1 to {MAX_HOT_ROWS}.')
    return int(text)


def _document(found: TableTraffic) -> dict[str, Any]:
    return {
        **{name: getattr(found, name) for name in TableTraffic.__slots__ if name not in ("rows", "features")},
        "rows": [row._asdict() for row in found.rows],
        "features": {name: ids._asdict() for name, ids in found.features.items()},
    }


# Two threads suffice: one comparison of versions runs at a time, and the other thread returns results that are kept.
_NUM_THREADS = 2
_MAX_WAITING = 16


def add_diff_route(app: FastAPI, engine: Engine) -> None:
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

    add_route(app, "/v1/models/{model}/versions/{version}:diff", diff, "GET", "diff")


def add_neighbor_routes(app: FastAPI, engine: Engine, *, max_body_bytes: int, timeout_s: float) -> Callable[[], None]:
    """Adds the HTTP route that finds nearest rows; returns a function that ends the searches' threads."""

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
