"""Builds the FastAPI application of the reference: lookups, rows of tables, predicts, statuses, health.

FastAPI makes the OpenAPI document from the bodies that are declared here. Lists of ids and numbers stay JSON, because
only the signature of a request has their dtypes.

Source of paths and texts: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from service.artifact.signature_def import metadata_json
from service.configuration.settings import Settings
from service.errors import (
    IdsTooMany,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    RouteNotFound,
    ServiceError,
    SignatureNotFound,
    UnfitSignature,
    Unimplemented,
)
from service.reference.json_tensors import (
    dump,
    lookup_answer,
    lookup_inputs,
    parse_object,
    predict_answer,
    predict_inputs,
)
from service.reference.models import Model, Models
from service.types import ModelRef

Numbers = Annotated[Any, Field(description="A number, or nested lists of numbers.", examples=[[0.5, 1.5]])]


class LookupBody(BaseModel):
    """A lookup of features: ids, or keys of a vocabulary, one per row or one list per row."""

    model_config = ConfigDict(extra="forbid", strict=True)
    features: dict[str, Any] = Field(
        description="Feature -> one id for each row, or one list of ids for each row.",
        examples=[{"user_id": [1, 2], "genres": [["Comedy", "Drama"], []]}],
    )
    weights: dict[str, Any] = Field(
        {}, description="Feature with lists of ids -> one list of factors for each row.", examples=[{}]
    )
    signature_name: str = Field("lookup", description="The lookup signature.")


class PredictBody(BaseModel):
    """A run of a signature, on rows ("instances") or on columns ("inputs"); TensorFlow Serving ignores other keys."""

    model_config = ConfigDict(extra="allow", strict=True)
    signature_name: str = Field("", description="The signature; serving_default if it is missing or empty.")
    instances: Any = Field(
        None, description="One object for each row: input -> value; plain values for a signature with one input."
    )
    inputs: Any = Field(None, description="Input -> values of all rows; plain values for a signature with one input.")


class RowsBody(BaseModel):
    """A request for rows of a table."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(description="Row numbers.", examples=[[0, 1]])
    labels: bool = Field(False, description="Labels beside the rows; this server has none and refuses true.")


class LookupAnswer(BaseModel):
    """The answer to a lookup: one vector for each row, or one sequence of vectors."""

    embeddings: dict[str, Numbers]


class PredictAnswer(BaseModel):
    """The answer to a predict: "predictions" to rows, "outputs" to columns."""

    predictions: list[Any] | None = None
    outputs: Any = None


class RowsAnswer(BaseModel):
    """The answer to a request for rows of a table."""

    rows: list[list[float]]


class VersionState(BaseModel):
    """The state of one version of a model, newest version first."""

    version: str
    state: Literal["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: dict[str, str]


class StatusAnswer(BaseModel):
    """The states of a model's versions."""

    model_version_status: list[VersionState]


class ErrorAnswer(BaseModel):
    """The answer to a request that is refused; the header X-Error-Code has the canonical code."""

    error: str


logger = logging.getLogger(__name__)

HTTP_STATUS: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 413,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# Most rows of a table that one request may read.
_MAX_TABLE_ROWS = 65536
_WHERE = ("", "/versions/{version}", "/labels/{label}")
# Ends of paths, and first folders, that only the server with the core has.
_OF_THE_CORE = re.compile(
    r".*:(classify|regress|neighbors|find|hot|row|page|projection|names|drift|diff)|/(v2|console|metrics)(/.*)?"
)


def http_config(models: Models, settings: Settings) -> uvicorn.Config:
    """Returns the configuration of a uvicorn server of the application."""
    app = create_app(models, max_body_bytes=settings.max_request_bytes, strict_json=settings.rest_api_strict_json)
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_keep_alive=int(settings.rest_api_keep_alive_s),
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
    )


def create_app(models: Models, *, max_body_bytes: int, strict_json: bool) -> FastAPI:
    """Returns the ASGI application.

    Args:
      max_body_bytes: largest body of a request.
      strict_json: refuses bare NaN and Infinity in bodies, and writes null for them.
    """
    app = FastAPI(
        title="Embedding lookups",
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.router.route_class = _json_route(max_body_bytes, strict_json)
    json_answer = partial(Response, media_type="application/json")

    def lookup(body: LookupBody, request: Request) -> Response:
        """Returns, for each feature that was sent, one combined vector for each row of ids."""
        with models.lease(_ref(request)) as model:
            spec = model.signature(body.signature_name or "lookup")
            outputs = model.run(spec, lambda: lookup_inputs(body.features, body.weights, spec))
        return json_answer(lookup_answer(outputs, strict=strict_json), headers=_version(model))

    def predict(body: PredictBody, request: Request) -> Response:
        """Runs a signature on tensors in JSON, given by row ("instances") or by column ("inputs")."""
        with models.lease(_ref(request)) as model:
            try:
                spec = model.signature(body.signature_name)
            except SignatureNotFound as error:
                name = body.signature_name or "serving_default"
                raise UnfitSignature(
                    f'Serving signature name: "{name}" not found in signature def{error.near}'
                ) from error
            document = body.model_dump(include=body.model_fields_set & {"instances", "inputs"})
            outputs = model.run(spec, lambda: predict_inputs(document, spec))
        answer = predict_answer(outputs, by_row="instances" in document, strict=strict_json)
        return json_answer(answer, headers=_version(model))

    def rows(body: RowsBody, request: Request) -> Response:
        """Returns the rows of a table for the ids in the request, not combined."""
        if body.labels:
            raise _not_here('"labels" of rows')
        if len(body.ids) > _MAX_TABLE_ROWS:
            raise IdsTooMany(f'input "ids": {len(body.ids)} ids, the limit is {_MAX_TABLE_ROWS} per request.')
        with models.lease(_ref(request)) as model:
            found = model.rows(request.path_params["table"], np.array(body.ids, np.int64))
        return json_answer(dump({"rows": found}, strict=strict_json), headers=_version(model))

    def tables(request: Request) -> Response:
        """Lists the embedding tables of a model version."""
        with models.lease(_ref(request)) as model:
            infos = [model.rows_of[name].info for name in sorted(model.rows_of)]
        return json_answer(orjson.dumps({"tables": infos}))

    def status(request: Request) -> Response:
        """Returns the states of a model's versions, newest version first."""
        # A label in the path is ignored, as in TensorFlow Serving.
        found = models.registry.statuses(_ref(request).name, _ref(request).version)
        told = [
            {
                "version": str(one.version),
                "state": one.state.name,
                "status": {"error_code": one.code, "error_message": one.message},
            }
            for one in found
        ]
        return json_answer(orjson.dumps({"model_version_status": told}))

    def metadata(request: Request) -> Response:
        """Returns a model's signatures."""
        with models.lease(_ref(request)) as model:
            return json_answer(metadata_json(model.name, model.version, model.signatures))

    def healthz() -> Response:
        """Answers "ok" to every health check; an orchestrator shall restart a server that does not answer."""
        return json_answer(orjson.dumps({"status": "ok"}))

    def readyz() -> Response:
        """Says whether a load balancer shall send requests to this server, and which models can not answer and why."""
        problems = models.problems()
        if models.registry.is_ready:
            return json_answer(orjson.dumps({"status": "ready", "problems": problems}))
        problems = problems or {"": "no model is configured"}
        return json_answer(orjson.dumps({"status": "not ready", "problems": problems}), 503)

    for where in _WHERE:
        path = "/v1/models/{model}" + where
        _add(app, path + ":lookup", lookup, LookupAnswer, "POST")
        _add(app, path + "/tables", tables, None, "GET")
        _add(app, path + "/tables/{table}:rows", rows, RowsAnswer, "POST")
        _add(app, path + ":predict", predict, PredictAnswer, "POST")
        _add(app, path, status, StatusAnswer, "GET")
        _add(app, path + "/metadata", metadata, None, "GET")
    _add(app, "/healthz", healthz, None, "GET")
    _add(app, "/readyz", readyz, None, "GET")
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(404, _on_http_exception)
    app.add_exception_handler(405, _on_http_exception)
    return app


def _add(app: FastAPI, path: str, endpoint: Callable[..., Response], answer: type[Any] | None, method: str) -> None:
    answers: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorAnswer}}
    if answer is not None:
        answers[200] = {"model": answer}
    app.add_api_route(path, endpoint, methods=[method], response_class=Response, responses=answers)


def _json_route(max_body_bytes: int, strict_json: bool) -> type[APIRoute]:
    """Returns a class of routes that parse each body as JSON, whatever its Content-Type, by TensorFlow Serving's rules.

    Source: "Custom Request and APIRoute class" of FastAPI's documentation.
    """

    class JsonRoute(APIRoute):
        """A route whose request has a document that parse_object() has read."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def parse(request: Request) -> Response:
                if request.method != "POST":
                    return await handle(request)
                if request.headers.get("content-encoding", "identity") != "identity":
                    raise MalformedPayload("The reference server reads no compressed bodies: send the body as it is.")
                body = bytearray()
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > max_body_bytes:
                        raise PayloadTooLarge(
                            f"The request body is over this server's limit of {max_body_bytes} bytes."
                        )
                parsed = _ParsedRequest({**request.scope, "headers": _as_json(request)}, request.receive)
                parsed.document = parse_object(bytes(body), strict=strict_json)
                parsed._body = bytes(body)
                return await handle(parsed)

            return parse

    return JsonRoute


class _ParsedRequest(Request):
    """A request whose body is parsed already; FastAPI asks it for the document."""

    document: dict[str, Any]

    async def json(self) -> Any:
        return self.document


def _as_json(request: Request) -> list[tuple[bytes, bytes]]:
    others = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    return [*others, (b"content-type", b"application/json")]


def _ref(request: Request) -> ModelRef:
    """Returns the model, and its version or label, that a path names; raises InvalidRequest."""
    name, version, label = (request.path_params.get(one) for one in ("model", "version", "label"))
    if ":" in f"{name}{label or ''}" or (version and not (version.isascii() and version.isdigit())):
        raise _malformed(request)
    if version and int(version) >= 2**63:
        raise InvalidRequest(f"Failed to convert version: {version} to numeric.")
    return ModelRef(str(name), int(version) if version else None, label)


def _version(model: Model) -> dict[str, str]:
    return {"X-Model-Version": str(model.version)}


def _malformed(request: Request) -> InvalidRequest:
    return InvalidRequest(f"Malformed request: {request.method} {request.url.path}")


async def _on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    status = HTTP_STATUS[error.code]
    level = logging.ERROR if status == 500 else logging.INFO
    logger.log(level, "request refused: %s", ascii(error.message[:4096]), exc_info=error if status == 500 else None)
    text = error.message.encode("utf-8", "replace").decode()
    headers = {"X-Error-Code": error.code}
    return Response(orjson.dumps({"error": text}), status, headers, media_type="application/json")


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """Answers with the first fault that pydantic found in a body."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"][1:])) or "body"
    return await _on_service_error(request, MalformedPayload(f'"{place}": {fault["msg"]}'))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answers to an unknown path, or a wrong method."""
    path = request.url.path
    unknown = _malformed(request) if path.startswith("/v1/") else RouteNotFound(f"Not found: {path}")
    return await _on_service_error(request, _not_here(path) if _OF_THE_CORE.fullmatch(path) else unknown)


def _not_here(what: str) -> Unimplemented:
    return Unimplemented(f"The reference server has no {what}: ask a server with the native core.")
