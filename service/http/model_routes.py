"""Adds the routes of models: status, metadata, tables, hot rows, searches, comparisons, and those of the native core.

The routes below /v2 are those of the Open Inference Protocol, version 2, as KServe and Triton serve it.

Source: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5); kserve/open-inference-protocol,
specification/protocol/inference_rest.md (29ca333); triton-inference-server/server,
docs/protocol/extension_{binary_data,model_repository,model_configuration}.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.artifact.signature_def import metadata_json
from service.control.engine import Engine, ModelDescription
from service.control.request_context import Call
from service.errors import DeadlineExceeded, InvalidRequest, MalformedPayload, Overloaded, ServiceError, Unimplemented
from service.http.body import read_body
from service.http.middleware import IS_ENCODED
from service.http.routing import (
    add_model_route,
    add_route,
    in_the_core,
    json_response,
    model_ref,
    named_model,
    version_number,
)
from service.types import ModelRef, SignatureSpec
from service.versions.counts import DEFAULT_HOT_ROWS, MAX_HOT_ROWS, TableTraffic
from service.versions.neighbors import SIGNATURE
from service.versions.threads import Workers
from service.wire import oip_models
from service.wire.api import HTTP_API, statuses_json
from service.wire.json_body import decode_neighbors, encode_neighbors, encode_tables, parse_object, shown


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
        return json_response({"models": listed})

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
        return json_response(_document(found))

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
    threads = Workers(_NUM_THREADS, "http-diff")
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
        return json_response(found)

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


# Largest body, in bytes, of a request for the index of the repository.
_MAX_INDEX_BYTES = 4096
# Path of a Triton route that this server lacks -> its HTTP methods, and the error text of the answer 501.
_UNIMPLEMENTED = {
    "/v2/models/{model}/stats": ("GET", "Statistics are not implemented; see /metrics."),
    "/v2/models/{model}/versions/{version}/stats": ("GET", "Statistics are not implemented; see /metrics."),
    "/v2/models/{model}/trace/setting": ("GET POST", "Tracing is not implemented."),
    "/v2/trace/setting": ("GET POST", "Tracing is not implemented."),
    "/v2/logging": ("GET POST", "Changing the log's settings is not implemented."),
    "/v2/systemsharedmemory/{rest:path}": ("GET POST", oip_models.NO_SHARED_MEMORY),
    "/v2/cudasharedmemory/{rest:path}": ("GET POST", oip_models.NO_SHARED_MEMORY),
    "/v2/repository/models/{model}/{action}": ("POST", oip_models.NO_CONTROL),
}


def add_open_inference_routes(app: FastAPI, engine: Engine) -> None:

    async def metadata(request: Request) -> Response:
        """Returns a model's AVAILABLE versions, and names, datatypes and shapes of the inputs and outputs of one
        signature.
        """
        description, spec = _described(request)
        return json_response(oip_models.model_metadata(description.name, engine.statuses(description.name), spec))

    async def config(request: Request) -> Response:
        """Returns a model's configuration in Triton's form: tensors of a signature, and optional inputs."""
        description, spec = _described(request)
        return json_response(oip_models.model_config(description.name, spec))

    def _described(request: Request) -> tuple[ModelDescription, SignatureSpec]:
        description = engine.describe(_ref(request))
        name = request.query_params.get(oip_models.SIGNATURE_PARAMETER, "")
        return description, description.signature(name, oip_models.FALLBACK_SIGNATURE)

    async def model_ready(request: Request) -> Response:
        """Answers "ready" if a model can answer requests; else an error says why it can not."""
        return json_response({"name": engine.require_ready(_ref(request)), "ready": True})

    async def server_metadata(request: Request) -> Response:
        """Returns the server's name, its version and the protocol extensions that it supports."""
        return json_response(oip_models.server_metadata())

    async def live(request: Request) -> Response:
        """Answers that the server is live, as long as its process can answer at all."""
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        """Says whether a load balancer shall send requests to this server; /readyz says which models can not answer."""
        is_ready = engine.is_ready
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    async def index(request: Request) -> Response:
        """Lists the versions of all models with their states; only those that can answer, if the body asks
        for these.
        """
        body = await read_body(request, _MAX_INDEX_BYTES)
        only_ready = read_only_ready(body)
        return json_response(
            oip_models.repository_index(engine.all_statuses(), engine.problems(), only_ready=only_ready)
        )

    for where in ("", "/versions/{version}"):
        path = "/v2/models/{model}" + where
        add_route(app, path + "/infer", in_the_core, "POST", "infer")
        add_route(app, path + "/ready", model_ready, "GET", "isModelReady")
        add_route(app, path + "/config", config, "GET", "getModelConfig")
        add_route(app, path, metadata, "GET", "describeModel")
    add_route(app, "/v2", server_metadata, "GET", "describeServer")
    add_route(app, "/v2/health/live", live, "GET", "isLive")
    add_route(app, "/v2/health/ready", ready, "GET", "isReady")
    add_route(app, "/v2/repository/index", index, "POST", "listRepository")
    for path, (methods, text) in _UNIMPLEMENTED.items():
        for name in methods.split():
            add_route(app, path, partial(_refuse, text), name)


def read_only_ready(body: bytes) -> bool:
    only_ready = parse_object("A request for the index", body).get("ready", False) if body else False
    if type(only_ready) is not bool:
        raise MalformedPayload(f'"ready" is {shown(only_ready)}, expected true or false.')
    return only_ready


def _ref(request: Request) -> ModelRef:
    name, version = request.path_params["model"], request.path_params.get("version", "")
    if IS_ENCODED in request.scope:
        name, version = unquote(name), unquote(version)
    return oip_models.model_ref(name, version)


async def _refuse(text: str, request: Request) -> Response:
    raise Unimplemented(text)
