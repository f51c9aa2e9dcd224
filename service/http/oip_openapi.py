"""Describes the routes of the Open Inference Protocol in the OpenAPI document."""

from __future__ import annotations

from service.http.json_schema import Json, ref
from service.http.openapi import described

_TAG = "Open Inference Protocol"
_LENGTH_HEADER: Json = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Bytes of the JSON, where binary data follows it.",
}
_BINARY: Json = {"schema": {"type": "string", "format": "binary"}}


def infer(path: str) -> Json:
    """Describes POST /infer."""
    users = {"name": "user_id", "datatype": "INT64", "shape": [2], "data": [1, 42]}
    lookup = {"id": "42", "parameters": {"signature_name": "lookup"}, "inputs": [users]}
    lookup["outputs"] = [{"name": "user_id"}]
    genres = [
        {"name": "genres__values", "datatype": "BYTES", "shape": [2], "data": ["Comedy", "Drama"]},
        {"name": "genres__row_splits", "datatype": "INT64", "shape": [3], "data": [0, 2, 2]},
    ]
    ragged = {"parameters": {"signature_name": "lookup"}, "inputs": genres}
    vectors = {"name": "user_id", "datatype": "FP32", "shape": [2, 2], "data": [0.12, -0.5, 0.7, 0.01]}
    answer = {"model_name": "movielens", "model_version": "1", "id": "42"}
    example: Json = answer | {"parameters": {"signature_name": "lookup"}, "outputs": [vectors]}
    route = described(
        "infer",
        _TAG,
        "Run a signature",
        path,
        ("The outputs; binary data follows the JSON if you ask for it", ref("InferResponse"), {"two users": example}),
        body=(ref("InferRequest"), {"two users": lookup, "two rows of genres, the second empty": ragged}),
        is_computed=True,
    )
    route["parameters"].append(_LENGTH_HEADER)
    route["requestBody"]["content"]["application/octet-stream"] = _BINARY
    route["responses"]["200"]["content"]["application/octet-stream"] = _BINARY
    return route


def model_metadata(path: str) -> Json:
    """Describes the route GET /v2/models/{model} for the OpenAPI document."""
    example = {
        "name": "movielens",
        "versions": ["2", "1"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "user_id", "datatype": "INT64", "shape": [-1]}],
        "outputs": [{"name": "user_id", "datatype": "FP32", "shape": [-1, 32]}],
    }
    return _with_signature(
        described(
            "describeModel",
            _TAG,
            "Inputs and outputs of a model",
            path,
            ("Those of one signature", ref("ModelMetadata"), {"a lookup": example}),
            errors=(400, 404, 503),
        )
    )


def model_config(path: str) -> Json:
    """Describes the route GET /v2/models/{model}/config for the OpenAPI document."""
    example = {
        "name": "movielens",
        "platform": "tensorflow_savedmodel",
        "backend": "",
        "max_batch_size": 0,
        "input": [{"name": "user_id", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}],
        "output": [{"name": "user_id", "data_type": "TYPE_FP32", "dims": [-1, 32]}],
    }
    return _with_signature(
        described(
            "getModelConfig",
            _TAG,
            "Configuration of a model",
            path,
            ("Tensors of one signature, and which inputs may be left out", ref("ModelConfig"), {"a lookup": example}),
            errors=(400, 404, 503),
        )
    )


def model_ready(path: str) -> Json:
    """Describes the route GET /v2/models/{model}/ready for the OpenAPI document."""
    answer = ("It can answer", ref("ModelReady"), {"ready": {"name": "movielens", "ready": True}})
    return described("isModelReady", _TAG, "Whether a model can answer", path, answer, errors=(400, 404, 503))


def server_metadata() -> Json:
    """Describes GET /v2."""
    example = {"name": "embedding-server", "version": "0.1.0", "extensions": ["binary_tensor_data", "parameters"]}
    answer = ("Name, version and extensions", ref("ServerMetadata"), {"one": example})
    return described("describeServer", _TAG, "About the server", "", answer, errors=())


def health(what: str) -> Json:
    """Describes the route GET /v2/health/live or GET /v2/health/ready for OpenAPI; `what` is "live" or "ready"."""
    name = what.capitalize()
    schema = ref(f"Server{name}")
    answer = ("It is", schema, {what: {what: True}})
    route = described(f"is{name}", _TAG, f"Whether the server is {what}", "", answer, errors=())
    if what == "ready":
        content = {"application/json": {"schema": schema, "examples": {"not ready": {"value": {"ready": False}}}}}
        route["responses"]["503"] = {"description": "Send no requests here", "content": content}
    return route


def repository_index() -> Json:
    """Describes the route POST /v2/repository/index for the OpenAPI document."""
    entry = {"name": "movielens", "version": "1", "state": "READY", "reason": ""}
    route = described(
        "listRepository",
        _TAG,
        "Models, versions and their states",
        "",
        ("One entry per version", ref("IndexResponse"), {"one version": [entry]}),
        body=(ref("IndexRequest"), {"all": {}, "those that can answer": {"ready": True}}),
        errors=(400, 413),
    )
    route["requestBody"]["required"] = False
    return route


def _with_signature(route: Json) -> Json:
    schema = {"type": "string"}
    description = "Default: serving_default where the model has it, else lookup."
    parameter = {"name": "signature_name", "in": "query", "required": False, "schema": schema}
    route["parameters"].append(parameter | {"description": description})
    return route
