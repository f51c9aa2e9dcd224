"""What /docs says of the Open Inference Protocol's routes; openapi.py names the example model."""

from __future__ import annotations

from service.transports.http.openapi import Json, described

_TAG = "Open Inference Protocol"
_OBJECT: Json = {"type": "object"}
_PARAMETERS: Json = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_DATATYPES = ["BOOL", *(f"{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64))]
_DATATYPES += ["FP16", "BF16", "FP32", "FP64", "BYTES"]
_INPUT: Json = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "enum": _DATATYPES},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "parameters": _PARAMETERS,
        "data": {
            "type": "array",
            "items": {},
            "description": "The values, flat or nested; left out where parameters.binary_data_size says how many of "
            "the bytes behind the JSON are this tensor's.",
        },
    },
}
_REQUEST: Json = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "description": "signature_name chooses the signature: by default serving_default where the model has it, "
            "else lookup. binary_data_output asks for binary outputs. Others are ignored.",
            "properties": {"signature_name": {"type": "string"}, "binary_data_output": {"type": "boolean"}},
        },
        "inputs": {"type": "array", "items": _INPUT},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
            },
        },
    },
}
_LENGTH_HEADER: Json = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Bytes of the JSON, where binary data follows it.",
}
_BINARY: Json = {"schema": {"type": "string", "format": "binary"}}


def infer(path: str) -> Json:
    """POST /infer"""
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
        _TAG,
        "Run a signature",
        path,
        ("The outputs; binary data follows the JSON where it was asked for", _OBJECT, {"two users": example}),
        body=(_REQUEST, {"two users": lookup, "two rows of genres, the second empty": ragged}),
    )
    route["openapi_extra"]["parameters"].append(_LENGTH_HEADER)
    route["openapi_extra"]["requestBody"]["content"]["application/octet-stream"] = _BINARY
    route["responses"][200]["content"]["application/octet-stream"] = _BINARY
    return route


def model_metadata(path: str) -> Json:
    """GET /v2/models/{model}"""
    example = {
        "name": "movielens",
        "versions": ["2", "1"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "user_id", "datatype": "INT64", "shape": [-1]}],
        "outputs": [{"name": "user_id", "datatype": "FP32", "shape": [-1, 32]}],
    }
    return _with_signature(
        described(
            _TAG,
            "Inputs and outputs of a model",
            path,
            ("Those of one signature", _OBJECT, {"a lookup": example}),
            errors=(400, 404, 503),
        )
    )


def model_config(path: str) -> Json:
    """GET /v2/models/{model}/config"""
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
            _TAG,
            "Configuration of a model",
            path,
            ("Tensors of one signature, and which inputs may be left out", _OBJECT, {"a lookup": example}),
            errors=(400, 404, 503),
        )
    )


def model_ready(path: str) -> Json:
    """GET /v2/models/{model}/ready"""
    answer = ("It can answer", _OBJECT, {"ready": {"name": "movielens", "ready": True}})
    return described(_TAG, "Whether a model can answer", path, answer, errors=(400, 404, 503))


def server_metadata() -> Json:
    """GET /v2"""
    example = {"name": "embedding-server", "version": "0.1.0", "extensions": ["binary_tensor_data", "parameters"]}
    return described(
        _TAG, "About the server", "", ("Name, version and extensions", _OBJECT, {"one": example}), errors=()
    )


def health(what: str) -> Json:
    """GET /v2/health/live and /v2/health/ready"""
    route = described(_TAG, f"Whether the server is {what}", "", ("It is", _OBJECT, {what: {what: True}}), errors=())
    if what == "ready":
        content = {"application/json": {"schema": _OBJECT, "examples": {"not ready": {"value": {"ready": False}}}}}
        route["responses"][503] = {"description": "A model can not answer", "content": content}
    return route


def repository_index() -> Json:
    """POST /v2/repository/index"""
    entry = {"name": "movielens", "version": "1", "state": "READY", "reason": ""}
    schema = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
    route = described(
        _TAG,
        "Models, versions and their states",
        "",
        ("One entry per version", {"type": "array", "items": _OBJECT}, {"one version": [entry]}),
        body=(schema, {"all": {}, "those that can answer": {"ready": True}}),
        errors=(400, 413),
    )
    route["openapi_extra"]["requestBody"]["required"] = False
    return route


def _with_signature(route: Json) -> Json:
    schema = {"type": "string"}
    description = "Default: serving_default where the model has it, else lookup."
    parameter = {"name": "signature_name", "in": "query", "required": False, "schema": schema}
    route["openapi_extra"]["parameters"].append(parameter | {"description": description})
    return route
