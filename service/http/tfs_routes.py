"""Adds the HTTP routes of TensorFlow Serving's REST API: status, metadata, and those that the native core answers.

Source: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5).
"""

from __future__ import annotations

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.artifact.signature_def import metadata_json
from service.engine.engine import Engine
from service.errors import InvalidRequest
from service.http import openapi
from service.http.routing import add_route, in_the_core, model_ref
from service.wire.status import statuses_json


def add_tfs_routes(app: FastAPI, engine: Engine) -> None:
    """Adds all routes of TensorFlow Serving's REST API."""

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
        """Refuses a status request whose path names no model."""
        raise InvalidRequest("Missing model name in request.")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":predict", in_the_core, "POST", openapi.predict(path))
        add_route(app, path + ":classify", in_the_core, "POST", openapi.classify(path))
        add_route(app, path + ":regress", in_the_core, "POST", openapi.regress(path))
        add_route(app, path, status, "GET", openapi.status(path))
        add_route(app, path + "/metadata", metadata, "GET", openapi.metadata(path))
    add_route(app, "/v1/models", models, "GET", openapi.models())
    for where in ("/versions/{version:int}", "/labels/{label}"):
        add_route(app, "/v1/models" + where, no_name, "GET")
        add_route(app, f"/v1/models{where}/metadata", no_name, "GET")
