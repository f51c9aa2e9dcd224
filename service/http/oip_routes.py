"""Adds the HTTP routes of the Open Inference Protocol, version 2, as KServe and Triton serve it.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md (29ca333);
triton-inference-server/server, docs/protocol/extension_{binary_data,model_repository,model_configuration}.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.control.engine import Engine, ModelDescription
from service.errors import MalformedPayload, Unimplemented
from service.http.body import read_body
from service.http.middleware import IS_ENCODED
from service.http.routing import add_route, in_the_core
from service.types import ModelRef, SignatureSpec
from service.wire import oip_models
from service.wire.json_body import parse_object, shown

_NO_SHARED_MEMORY = "Shared memory is not implemented; send tensors in the request."
_NO_CONTROL = "Loading and unloading a model is not implemented; change the folder of models or the list of models."
# Largest body, in bytes, of a request for the index of the repository.
_MAX_INDEX_BYTES = 4096
# Path of a Triton route that this server lacks -> its HTTP methods, and the error text of the answer 501.
_UNIMPLEMENTED = {
    "/v2/models/{model}/stats": ("GET", "Statistics are not implemented; see /metrics."),
    "/v2/models/{model}/versions/{version}/stats": ("GET", "Statistics are not implemented; see /metrics."),
    "/v2/models/{model}/trace/setting": ("GET POST", "Tracing is not implemented."),
    "/v2/trace/setting": ("GET POST", "Tracing is not implemented."),
    "/v2/logging": ("GET POST", "Changing the log's settings is not implemented."),
    "/v2/systemsharedmemory/{rest:path}": ("GET POST", _NO_SHARED_MEMORY),
    "/v2/cudasharedmemory/{rest:path}": ("GET POST", _NO_SHARED_MEMORY),
    "/v2/repository/models/{model}/{action}": ("POST", _NO_CONTROL),
}


def add_open_inference_routes(app: FastAPI, engine: Engine) -> None:

    async def metadata(request: Request) -> Response:
        """Returns a model's AVAILABLE versions, and names, datatypes and shapes of the inputs and outputs of one
        signature.
        """
        description, spec = _described(request)
        return _json(oip_models.model_metadata(description.name, engine.statuses(description.name), spec))

    async def config(request: Request) -> Response:
        """Returns a model's configuration in Triton's form: tensors of a signature, and optional inputs."""
        description, spec = _described(request)
        return _json(oip_models.model_config(description.name, spec))

    def _described(request: Request) -> tuple[ModelDescription, SignatureSpec]:
        description = engine.describe(_ref(request))
        name = request.query_params.get(oip_models.SIGNATURE_PARAMETER, "")
        return description, description.signature(name, oip_models.FALLBACK_SIGNATURE)

    async def model_ready(request: Request) -> Response:
        """Answers "ready" if a model can answer requests; else an error says why it can not."""
        return _json({"name": engine.require_ready(_ref(request)), "ready": True})

    async def server_metadata(request: Request) -> Response:
        """Returns the server's name, its version and the protocol extensions that it supports."""
        return _json(oip_models.server_metadata())

    async def live(request: Request) -> Response:
        """Answers that the server is live, as long as its process can answer at all."""
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        """Says whether a load balancer shall send requests to this server; /readyz says which models can not answer."""
        is_ready = engine.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def index(request: Request) -> Response:
        """Lists the versions of all models with their states; only those that can answer, if the body asks
        for these.
        """
        body = await read_body(request, _MAX_INDEX_BYTES)
        only_ready = read_only_ready(body)
        return _json(oip_models.repository_index(engine.all_statuses(), engine.problems(), only_ready=only_ready))

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


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
