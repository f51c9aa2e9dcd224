"""Defines, by name, the JSON Schemas of request and answer bodies of the Open Inference Protocol."""

from __future__ import annotations

from service.http.json_schema import (
    BOOLEAN,
    INTEGER,
    STRING,
    Json,
    an_object,
    array_of,
    enum_of,
    map_of,
    ref,
)

_DATATYPES = ["BOOL", *(f"{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64))]
_DATATYPES += ["FP16", "BF16", "FP32", "FP64", "BYTES"]
OPEN_INFERENCE: dict[str, Json] = {
    "Datatype": {"type": "string", "enum": _DATATYPES},
    "Parameters": map_of({"type": ["string", "number", "boolean"]}),
    "InferInput": {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": STRING,
            "datatype": ref("Datatype"),
            "shape": array_of(INTEGER | {"minimum": 0}),
            "parameters": ref("Parameters"),
            "data": array_of(
                ref("Tensor"),
                "The values, flat or nested; left out if parameters.binary_data_size says how many of the bytes behind "
                "the JSON are this tensor's.",
            ),
        },
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": STRING,
            "parameters": {
                "type": "object",
                "description": "signature_name chooses the signature: by default serving_default if the model has it, "
                "else lookup. binary_data_output asks for binary outputs. Others are ignored.",
                "properties": {"signature_name": STRING, "binary_data_output": BOOLEAN},
            },
            "inputs": array_of(ref("InferInput")),
            "outputs": array_of(
                {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": STRING, "parameters": ref("Parameters")},
                }
            ),
        },
    },
    "InferOutput": an_object(
        {"name": STRING, "datatype": ref("Datatype"), "shape": array_of(INTEGER)},
        {"parameters": ref("Parameters"), "data": array_of(ref("Tensor"), "The values in row order.")},
    ),
    "InferResponse": an_object(
        {
            "model_name": STRING,
            "model_version": STRING,
            "parameters": ref("Parameters"),
            "outputs": array_of(ref("InferOutput")),
        },
        {"id": STRING},
    ),
    "TensorMetadata": an_object(
        {"name": STRING, "datatype": STRING, "shape": array_of(INTEGER, "-1 is a size that is not known.")}
    ),
    "ModelMetadata": an_object(
        {
            "name": STRING,
            "versions": array_of(STRING, "Those that can answer, newest first."),
            "platform": STRING,
            "inputs": array_of(ref("TensorMetadata")),
            "outputs": array_of(ref("TensorMetadata")),
        }
    ),
    "ConfiguredTensor": an_object(
        {"name": STRING, "data_type": STRING, "dims": array_of(INTEGER, "-1 is a size that is not known.")},
        {"optional": BOOLEAN},
    ),
    "ModelConfig": an_object(
        {
            "name": STRING,
            "platform": STRING,
            "backend": STRING,
            "max_batch_size": INTEGER,
            "input": array_of(ref("ConfiguredTensor")),
            "output": array_of(ref("ConfiguredTensor")),
        }
    ),
    "ModelReady": an_object({"name": STRING, "ready": BOOLEAN}),
    "ServerMetadata": an_object({"name": STRING, "version": STRING, "extensions": array_of(STRING)}),
    "ServerLive": an_object({"live": BOOLEAN}),
    "ServerReady": an_object({"ready": BOOLEAN}),
    "IndexRequest": {"type": "object", "properties": {"ready": BOOLEAN}},
    "IndexResponse": array_of(
        an_object(
            {
                "name": STRING,
                "version": STRING | {"description": "Empty for a model that has no version."},
                "state": enum_of("READY", "UNAVAILABLE", "LOADING", "UNLOADING"),
                "reason": STRING,
            }
        )
    ),
}
