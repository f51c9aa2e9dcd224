"""TensorFlow Serving's REST API: predict, status, metadata.

Source: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5).
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.codecs.json_tensor import PredictBody, decode_inputs, decode_predict, encode_predict
from service.codecs.signature_def import metadata_json
from service.codecs.status import statuses_json
from service.core.engine import Bound, Engine
from service.core.errors import InvalidRequest
from service.transports.http import openapi
from service.transports.http.calls import Calls, Method
from service.transports.http.errors import error_response
from service.transports.http.routing import add_route, model_ref


def add_tfs_routes(app: FastAPI, engine: Engine, calls: Calls) -> None:
    """Adds the routes that TensorFlow Serving has too."""
    # gRPC's text for the same fault names a key and stands in the engine.
    predict_method = Method(
        decode_predict,
        _predict,
        unknown_signature='Serving signature name: "{}" not found in signature def',
        name="predict",
    )

    async def predict(request: Request) -> Response:
        """Runs a signature on JSON tensors, by row or by column."""
        data = await calls.answer(request, model_ref(request), predict_method)
        return Response(data, media_type="application/json")

    async def unimplemented(request: Request) -> Response:
        """Says that classify and regress are not served."""
        return error_response(501, f"{request.url.path.rpartition(':')[2]} is not implemented; use predict.")

    async def status(request: Request) -> Response:
        """Tells the state of a model's versions, newest first."""
        # A label in the path is ignored, as TensorFlow Serving does.
        request.path_params.pop("label", None)
        ref = model_ref(request)
        return Response(statuses_json(engine.statuses(ref.name, ref.version)), media_type="application/json")

    async def metadata(request: Request) -> Response:
        """Tells a model's signatures."""
        description = engine.describe(model_ref(request))
        data = metadata_json(description.name, description.version, description.signatures)
        return Response(data, media_type="application/json")

    async def no_name(request: Request) -> Response:
        """Refuses a status request without a model."""
        raise InvalidRequest("Missing model name in request.")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":predict", predict, "POST", **openapi.predict(path))
        add_route(app, path + ":classify", unimplemented, "POST", include_in_schema=False)
        add_route(app, path + ":regress", unimplemented, "POST", include_in_schema=False)
        add_route(app, path, status, "GET", **openapi.status(path))
        add_route(app, path + "/metadata", metadata, "GET", **openapi.metadata(path))
    add_route(app, "/v1/models", no_name, "GET", include_in_schema=False)


def _predict(bound: Bound, body: PredictBody, deadline_s: float) -> bytes:
    outputs = bound.run(decode_inputs(body, bound.spec), deadline_s=deadline_s)
    return encode_predict(outputs, body.layout)
