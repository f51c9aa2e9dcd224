"""Describes each HTTP route in the OpenAPI document: its operation, bodies and answers with examples, and errors.

Routes read raw bytes, so FastAPI can not derive these descriptions from types, and this module makes the whole
document. The examples are for a model "movielens": features user_id, film_id and occupation have one id per row,
genres and recent_films any number. If a model can answer, examples for that model replace them. Those hold id 0 and the
string "key", never a real key of a vocabulary: a caller that may see the model may not be allowed to read its keys.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.engine.engine import Engine, ModelDescription
from service.engine.table_view import vocabularies_of
from service.errors import ServiceError
from service.http.routing import RawRoute, add_route
from service.http.schemas import Json, ref, schemas
from service.types import ModelRef, SignatureSpec, TableInfo, TensorSpec
from service.wire.oip_models import datatype_name

# Most signatures for which the page /docs shows an example; more examples would hide the rest of the page.
_MAX_SIGNATURES = 4
# Methods of signatures that take tf.Examples: no request of `:predict` has a form for these that a person would write.
_EXAMPLE_METHODS = ("tensorflow/serving/classify", "tensorflow/serving/regress")
_ROUTES = {"lookup": ":lookup", "predict": ":predict", "infer": "/infer", "rows": ":rows", "neighbors": ":neighbors"}


# A model that can answer, with its tables; None if there is none.
Served = tuple[ModelDescription, Sequence[TableInfo]] | None


def add_examples(document: Json, served: Served) -> None:
    """Replaces the example requests in the OpenAPI document by requests for the model that served_model() returned, and
    names this model first in the document's description.
    """
    if served is None:
        return
    description, tables = served
    shown = ", ".join(f"`{info.name}` {info.vocabulary_size:,} x {info.embedding_dim}" for info in tables)
    first = f"All examples here are requests for the model **`{description.name}`**, version {description.version}"
    about = f"{first}{f' (tables: {shown})' if shown else ''}.\n\n{document['info']['description'].lstrip()}"
    document["info"] = document["info"] | {"description": about}
    requests = {
        _ROUTES["lookup"]: _requests(description, _is_lookup, _lookup),
        _ROUTES["predict"]: _requests(description, _is_predict, _predict),
        _ROUTES["infer"]: _requests(description, _is_predict, _infer),
        _ROUTES["rows"]: {"the first row": {"value": {"ids": [0]}}} if tables else {},
        _ROUTES["neighbors"]: {"of the first row": {"value": {"ids": [0], "k": 3}}} if tables else {},
    }
    values = {"model": description.name, "version": description.version, "to": description.version}
    values |= {"table": tables[0].name} if tables else {}
    keyed = [info.name for info in tables if vocabularies_of(description, info)]
    for path, methods in document["paths"].items():
        examples_of = values | {"table": keyed[0]} if keyed and path.endswith(":keys") else values
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in examples_of:
                    parameter["example"] = examples_of[parameter["name"]]
        for suffix, examples in requests.items():
            if path.endswith(suffix):
                methods["post"]["requestBody"]["content"]["application/json"]["examples"] = examples
                # The example answer in the OpenAPI document is removed, because it belongs to the example request that
                # was replaced.
                del methods["post"]["responses"]["200"]["content"]["application/json"]["examples"]


def served_model(engine: Engine) -> Served:
    """Returns the first model that can answer and that the caller may see, with its tables; None if there is none."""
    for name in engine.models():
        try:
            ref = ModelRef(name)
            return engine.describe(ref), engine.tables(ref)
        except ServiceError:
            continue
    return None


def _requests(
    description: ModelDescription, is_wanted: Callable[[SignatureSpec], bool], body: Callable[[SignatureSpec], Json]
) -> Json:
    wanted = [spec for spec in description.signatures.values() if is_wanted(spec)]
    return {f'signature "{spec.name}"': {"value": body(spec)} for spec in wanted[:_MAX_SIGNATURES]}


def _is_lookup(spec: SignatureSpec) -> bool:
    return spec.kind == "lookup"


def _is_predict(spec: SignatureSpec) -> bool:
    # A predict signature with a tensor of a dtype that numpy lacks gets no example in the OpenAPI document, because
    # JSON has no form for its values.
    has_json = all(tensor.numpy_dtype is not None for tensor in (*spec.inputs.values(), *spec.outputs.values()))
    return bool(spec.inputs) and has_json and spec.method_name not in _EXAMPLE_METHODS


def _lookup(spec: SignatureSpec) -> Json:
    return {"features": _columns(spec), "signature_name": spec.name}


def _predict(spec: SignatureSpec) -> Json:
    return {"inputs": _columns(spec), "signature_name": spec.name}


def _infer(spec: SignatureSpec) -> Json:
    tensors = []
    for tensor in _row_inputs(spec).values():
        shape = _shape(tensor)
        tensors.append(_tensor(tensor, shape, [_value(tensor)] * math.prod(shape)))
    for names in spec.ragged_names:
        values, splits = spec.inputs[names.values], spec.inputs[names.row_splits]
        tensors += [_tensor(values, [1], [_value(values)]), _tensor(splits, [2], [0, 1])]
    return {"inputs": tensors, "parameters": {"signature_name": spec.name}}


def _columns(spec: SignatureSpec) -> Json:
    """Returns an example request by columns: name of an input or of a ragged feature -> a list with one row."""
    columns = {name: _nested(_value(tensor), _shape(tensor)) for name, tensor in _row_inputs(spec).items()}
    return columns | {names.feature: [[_value(spec.inputs[names.values])]] for names in spec.ragged_names}


def _row_inputs(spec: SignatureSpec) -> Mapping[str, TensorSpec]:
    """Returns the inputs of an OpenAPI example request that are not ragged: all of a lookup, and only the required ones
    of a predict.
    """
    names = spec.row_inputs if spec.kind == "lookup" else spec.row_inputs & spec.required
    return {name: spec.inputs[name] for name in sorted(names)}


def _tensor(tensor: TensorSpec, shape: list[int], data: list[Any]) -> Json:
    return {"name": tensor.name, "datatype": datatype_name(tensor.dtype), "shape": shape, "data": data}


def _shape(tensor: TensorSpec) -> list[int]:
    return [1 if size is None else size for size in tensor.shape or ()]


def _nested(value: Any, shape: list[int]) -> Any:
    for size in reversed(shape):
        value = [value] * size
    return value


def _value(tensor: TensorSpec) -> Any:
    if tensor.dtype == "string":
        return "key" if tensor.vocabulary is not None else ""
    if tensor.dtype == "bool":
        return False
    return 0.0 if tensor.dtype in ("float16", "bfloat16", "float32", "float64") else 0


_DESCRIPTION = """
Embedding lookups straight from memory-mapped tables, and TensorFlow Serving's REST API for everything else.

* `:lookup` takes ids (or the keys of a feature's vocabulary, strings or integers) and answers one combined vector per
  row, or one vector per id where the feature is a sequence.
* `:predict` takes and answers what TensorFlow Serving does, for every signature of a model.
* `/tables` shows the embedding tables and their rows; `:neighbors` finds the rows that are nearest to others.
* `/v2` is the Open Inference Protocol, as KServe and Triton have it, for the same models.

Every error has the body `{"error": "<text>"}`. Answers carry `X-Request-Id`: the client's own, or a new one. Those that
a version of a model computed carry `X-Model-Version`.
Bodies may be sent with `Content-Encoding: gzip` or `deflate`. The same models answer TensorFlow Serving's gRPC API.
"""
_TAGS = [
    {"name": "Embeddings", "description": "Lookups and tables."},
    {"name": "TensorFlow Serving", "description": "Drop-in REST API of tensorflow_model_server."},
    {"name": "Open Inference Protocol", "description": "Version 2, with the binary tensor data extension."},
    {"name": "Versions", "description": "What a new version changed, and which rows are hot."},
    {"name": "Operations", "description": "For orchestrators and monitoring."},
]
_ERRORS: dict[int, tuple[str, str]] = {
    400: (
        "The request can not succeed as it was sent",
        'input "user_id": id 6041 at position 1 is out of range, its table has ids 0 to 6040.',
    ),
    404: ("No such model, version or table", "Servable not found for request: Latest(movielens)"),
    413: ("The body is over the limit", "The body of 99000000 bytes is over the limit of 33554432 bytes."),
    500: ("A fault of the server", "Internal error; the server's log has the cause, request id 5f2c-1a"),
    503: (
        "The model is loading, the server is shutting down or overloaded",
        'Model "movielens" is not ready: version 1 is LOADING',
    ),
    504: ("Out of time", "Timed out: the request took longer than 30 s."),
}
_GENRES = [["Comedy", "Drama"], []]
_EMBEDDINGS = {"user_id": [[0.12, -0.5, 0.33, 0.04], [0.7, 0.01, -0.2, 0.9]], "genres": [[0.5, 0.25], [0.0, 0.0]]}


def application() -> Json:
    """Returns the general fields of the OpenAPI document: title, version, description, tags and license."""
    return {
        "title": "Embedding server",
        "version": "1",
        # FastAPI adds no route for the OpenAPI document, because complete() adds one.
        "openapi_url": None,
        "description": _DESCRIPTION,
        "openapi_tags": _TAGS,
        "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    }


def complete(app: FastAPI, engine: Engine, *, strict_json: bool) -> None:
    """Adds the route of the OpenAPI document, with the schemas of bodies and requests for a model that is served.

    Call it after all documented routes were added.
    """
    paths: dict[str, Json] = {}
    for route in app.routes:
        if isinstance(route, RawRoute) and route.operation is not None:
            operation = {"description": inspect.cleandoc(route.endpoint.__doc__ or ""), **route.operation}
            paths.setdefault(route.path_format, {})[route.method.lower()] = operation
    general = {
        "openapi": app.openapi_version,
        "info": {
            "title": app.title,
            "version": app.version,
            "description": app.description,
            "license": app.license_info,
        },
        "tags": app.openapi_tags,
    }
    last: tuple[object, Json] | None = None

    def describe() -> Json:
        nonlocal last
        served = served_model(engine)
        # The model's description is not kept, because it would keep the vocabularies of an unloaded version in memory.
        key = served and (served[0].name, served[0].version, [table.name for table in served[1]])
        if last is not None and last[0] == key:
            return last[1]
        # The operations are copied and not changed, because the examples differ when other models are served.
        document = general | {"paths": deepcopy(paths), "components": {"schemas": schemas(strict_json=strict_json)}}
        add_examples(document, served)
        # The copy is kept until another model is served, because making it takes the event loop several milliseconds.
        last = (key, document)
        return document

    app.openapi = describe  # type: ignore[method-assign]

    async def document(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(copy_context().run, describe))

    add_route(app, "/openapi.json", document, "GET")


def lookup(path: str) -> Json:
    """Describes POST :lookup."""
    examples = {
        "two users and their genres": {"features": {"user_id": [1, 42], "genres": _GENRES}},
        "weighted history": {
            "features": {"recent_films": [[50, 1, 2]]},
            "weights": {"recent_films": [[1.0, 0.5, 0.25]]},
        },
        "as on a TPU": {"features": {"film_id": [50]}, "signature_name": "lookup_tpu_tensor_core"},
    }
    answer = _computed(
        "One vector per row, or a list of them for a sequence, for the features that were sent",
        ref("LookupResponse"),
        {"two users and their genres": {"embeddings": _EMBEDDINGS}},
    )
    body = _body(ref("LookupRequest"), examples)
    return _route("lookup", "Embeddings", "Look embeddings up", path, answer, body=body)


def tables(path: str) -> Json:
    """Describes GET /tables."""
    table = {
        "name": "film",
        "vocabulary_size": 1683,
        "embedding_dim": 32,
        "dtype": "float32",
        "nbytes": 215424,
        "features": ["film_id", "recent_films"],
    }
    answer = _answer("The tables, by name", ref("TablesResponse"), {"one table, two features": {"tables": [table]}})
    return _route("listTables", "Embeddings", "List tables", path, answer, errors=(400, 404, 503))


def rows(path: str) -> Json:
    """Describes the route POST /tables/{table}:rows for the OpenAPI document."""
    answer = _computed(
        "The rows, in the order of the ids", ref("RowsResponse"), {"two rows": {"rows": [[0.1, -0.2], [0.3, 0.4]]}}
    )
    body = _body(ref("RowsRequest"), {"two rows": {"ids": [50, 1]}})
    return _route("readRows", "Embeddings", "Read rows of a table", path + "/tables/{table}", answer, body=body)


def predict(path: str) -> Json:
    """Describes POST :predict."""
    row = {"user_id": 1, "film_id": 50, "occupation": 3, "genres": ["Drama"], "recent_films": [1, 2]}
    columns: Json = {"user_id": [1, 42], "film_id": [50, 1], "occupation": [3, 4]}
    columns |= {"genres": _GENRES, "recent_films": [[1, 2], []]}
    examples = {
        "rows": {"instances": [row]},
        "columns": {"inputs": columns},
        "a lookup, by column": {"signature_name": "lookup", "inputs": {"user_id": [1, 42], "genres": _GENRES}},
    }
    answers = {
        "rows": {"predictions": [4.12]},
        "columns": {"outputs": [4.12, 3.07]},
        "a lookup, by column": {"outputs": _EMBEDDINGS},
    }
    answer = _computed("The outputs; a single output has no name", ref("PredictResponse"), answers)
    body = _body(ref("PredictRequest"), examples)
    return _route("predict", "TensorFlow Serving", "Run a signature", path, answer, body=body)


def classify(path: str) -> Json:
    """Describes POST :classify."""
    examples = {"two examples": {"results": [[["cat", 0.9], ["dog", 0.1]], [["cat", 0.2], ["dog", 0.8]]]}}
    answer = _computed("[label, score] of each class, for each example", ref("ClassifyResponse"), examples)
    return _route("classify", "TensorFlow Serving", "Classify examples", path, answer, body=_examples())


def regress(path: str) -> Json:
    """Describes POST :regress."""
    answer = _computed("A value for each example", ref("RegressResponse"), {"two examples": {"results": [2.5, 4.0]}})
    return _route("regress", "TensorFlow Serving", "Regress over examples", path, answer, body=_examples())


def _examples() -> Json:
    bodies = {
        "two examples": {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}, {"x": 4.0}]},
        "a context": {"context": {"user": "ann"}, "examples": [{"x": [1.0]}]},
    }
    return _body(ref("ExamplesRequest"), bodies)


def models() -> Json:
    """Describes the route GET /v1/models for the OpenAPI document."""
    version = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    example = {"models": [{"name": "movielens", "model_version_status": [version]}]}
    answer = _answer("The models you may see", ref("ModelsResponse"), {"one model": example})
    return _route("getModels", "TensorFlow Serving", "Models and their versions", "/v1/models", answer, errors=())


def status(path: str) -> Json:
    """Describes the route GET /v1/models/{model} for the OpenAPI document."""
    versions = [
        {"version": "2", "state": "LOADING", "status": {"error_code": "OK", "error_message": ""}},
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
    ]
    answer = _answer(
        "Versions, newest first",
        ref("StatusResponse"),
        {"a new version loads": {"model_version_status": versions}},
    )
    return _route("getStatus", "TensorFlow Serving", "State of a model's versions", path, answer, errors=(400, 404))


def metadata(path: str) -> Json:
    """Describes GET .../metadata."""

    def tensor(dtype: str, name: str, *sizes: int) -> Json:
        dim = [{"size": str(size), "name": ""} for size in sizes]
        return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": False}, "name": name}

    signature = {
        "inputs": {"user_id": tensor("DT_INT64", "lookup_user_id:0", -1)},
        "outputs": {"user_id": tensor("DT_FLOAT", "PartitionedCall:0", -1, 32)},
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }
    example = {
        "model_spec": {"name": "movielens", "signature_name": "", "version": "1"},
        "metadata": {"signature_def": {"signature_def": {"lookup": signature}}},
    }
    answer = _answer("The signatures", ref("MetadataResponse"), {"one signature": example})
    return _route("getMetadata", "TensorFlow Serving", "Signatures of a model", path, answer, errors=(400, 404, 503))


def healthz() -> Json:
    """Describes GET /healthz."""
    answer = _answer("The process lives", ref("Liveness"), {"alive": {"status": "ok"}})
    return _route("healthz", "Operations", "Liveness", "", answer, errors=())


def readyz() -> Json:
    """Describes GET /readyz."""
    answer = _answer("Send requests here", ref("Readiness"), {"ready": {"status": "ready", "problems": {}}})
    problems = {"movielens": "version 2 is LOADING"}
    examples = {"not ready": {"status": "not ready", "problems": problems}}
    answer |= _answer("Send no requests here", ref("Readiness"), examples, 503)
    return _route("readyz", "Operations", "Readiness", "", answer, errors=())


def metrics() -> Json:
    """Describes GET /metrics."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    answer = {"200": {"description": "Prometheus text", "content": content}}
    return _route("metrics", "Operations", "Metrics", "", answer, errors=())


def described(
    operation: str,
    tag: str,
    summary: str,
    path: str,
    answer: tuple[str, Json, Json],
    *,
    body: tuple[Json, Json] | None = None,
    errors: tuple[int, ...] = tuple(_ERRORS),
    is_computed: bool = False,
    query: Sequence[Json] = (),
) -> Json:
    """Makes the OpenAPI description of one HTTP route from the route's name, texts, schemas and examples.

    Args:
      operation: the operation's name in generated clients.
      answer: description, schema and examples by name.
      body: schema and examples by name.
      is_computed: a version of a model computes the answer.
      query: OpenAPI parameters of the query.
    """
    answers = (_computed if is_computed else _answer)(*answer)
    route = _route(operation, tag, summary, path, answers, body=None if body is None else _body(*body), errors=errors)
    route["parameters"] += query
    return route


def _route(
    operation: str,
    tag: str,
    summary: str,
    path: str,
    answer: Json,
    *,
    body: Json | None = None,
    errors: tuple[int, ...] = tuple(_ERRORS),
) -> Json:
    responses = dict(answer)
    for status_code in errors:
        description, text = _ERRORS[status_code]
        responses |= _answer(description, ref("Error"), {"error": {"error": text}}, status_code)
    # The id of an OpenAPI operation gets a suffix if its path has a version or a label: the same operation has a path
    # without them, and ids must differ.
    of_what = "Version" if "{version}" in path else "Label" if "{label}" in path else ""
    return {
        "operationId": operation + of_what,
        "tags": [tag],
        "summary": summary,
        "responses": responses,
        "parameters": [_parameter(name) for name in re.findall(r"{(\w+)}", path)],
        **({} if body is None else {"requestBody": body}),
    }


def _parameter(name: str) -> Json:
    examples = {"model": "movielens", "version": 1, "table": "film", "label": "stable"}
    kind = "integer" if name == "version" else "string"
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}, "example": examples[name]}


def _body(schema: Json, examples: Json) -> Json:
    return {"required": True, "content": {"application/json": _content(schema, examples)}}


def _computed(description: str, schema: Json, examples: Json) -> Json:
    """Describes for OpenAPI an answer with the header X-Model-Version, which names the model version that computed the
    answer.
    """
    answer = _answer(description, schema, examples)
    header = {"required": True, "schema": {"type": "integer"}, "description": "The version that computed the answer."}
    answer["200"]["headers"] = {"X-Model-Version": header}
    return answer


def _answer(description: str, schema: Json, examples: Json, status_code: int = 200) -> Json:
    return {
        str(status_code): {"description": description, "content": {"application/json": _content(schema, examples)}},
    }


def _content(schema: Json, examples: Json) -> Json:
    return {"schema": schema, "examples": {name: {"value": value} for name, value in examples.items()}}
