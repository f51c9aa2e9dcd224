"""Defines, by name, the JSON Schemas of all request and answer bodies, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from service.comparison.document import VersionDiff
from service.engine.neighbors import METRICS

Json = dict[str, Any]

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
NUMBER_OR_NULL: Json = {"type": ["number", "null"]}
BOOLEAN: Json = {"type": "boolean"}


def ref(name: str) -> Json:
    """Returns a JSON schema that refers to a named schema of openapi_schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(required: Json, optional: Json | None = None, *, description: str = "") -> Json:
    """Returns a JSON schema for an object that may have only the given fields."""
    schema: Json = {"type": "object", "properties": required | (optional or {}), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema | ({"description": description} if description else {})


def array_of(items: Json, description: str = "") -> Json:
    """Returns a JSON schema for a list whose items have the given schema."""
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def map_of(values: Json, description: str = "") -> Json:
    """Returns a JSON schema for an object with any field names, whose values have the given schema."""
    return {"type": "object", "additionalProperties": values} | ({"description": description} if description else {})


def enum_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def schemas_of(kind: type) -> dict[str, Json]:
    """Returns the JSON schemas of a dataclass and of the dataclasses in its fields, by name; floats that are not finite
    are written as null.
    """
    schema: Json = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
    found: dict[str, Json] = schema.pop("$defs", {}) | {kind.__name__: schema}
    for one in found.values():
        one |= {"additionalProperties": False, "required": list(one["properties"])}
        del one["title"]
        for field in one["properties"].values():
            field.pop("title", None)
    return found


_NUMBERS = array_of({"type": ["number", "null"]})
_LABEL: Json = {"type": ["string", "null"], "description": "What people call the row; null: it has no label."}
_KEY: Json = {"type": ["string", "integer", "null"], "description": "null: the row has no key."}

TABLE_VIEW: dict[str, Json] = {
    "TablePage": an_object(
        {
            "version": INTEGER,
            "start": INTEGER | {"description": "Id of the first row."},
            "total": INTEGER | {"description": "Rows of the table."},
            "keys": array_of(_KEY, "Empty for a table without a vocabulary."),
            "labels": array_of(_LABEL, "Empty for a table without labels."),
            "norms": _NUMBERS | {"description": "Euclidean length of each row; null is NaN or infinite."},
        }
    ),
    "TableRow": an_object(
        {
            "version": INTEGER,
            "id": INTEGER,
            "keys": map_of(_KEY, "The row's key, by feature with a vocabulary."),
            "label": _LABEL,
            "is_known": BOOLEAN | {"description": "false: the key led to a row for unknown keys."},
            "values": _NUMBERS,
            "norm": {"type": ["number", "null"]},
            "delta": {
                "anyOf": [ref("RowDelta"), {"type": "null"}],
                "description": "The delta that wrote the row last; null: the row is as the version was saved.",
            },
        }
    ),
    "RowDelta": an_object(
        {
            "sequence": INTEGER,
            "time_s": {"type": ["number", "null"], "description": "When the delta was made, since 1970."},
        }
    ),
    "TableMap": an_object(
        {
            "version": INTEGER,
            "total": INTEGER | {"description": "Rows of the table; a large table is sampled."},
            "explained": array_of({"type": "number"}, "Shares of the variance along x and y."),
            "ids": array_of(INTEGER),
            "x": _NUMBERS,
            "y": _NUMBERS,
            "norms": _NUMBERS,
        }
    ),
    "TableDrift": an_object(
        {
            "version": INTEGER,
            "from": INTEGER | {"description": "The older version."},
            "is_aligned": BOOLEAN | {"description": "A rotation between the versions was undone."},
            "values": _NUMBERS | {"description": "null: the older version lacks the row, or the row has no direction."},
        }
    ),
    "TableNames": an_object(
        {
            "version": INTEGER,
            "keys": map_of(array_of(_KEY), "The rows' keys, by feature with a vocabulary."),
            "labels": array_of(_LABEL, "Empty for a table without labels."),
        }
    ),
    "FoundRows": an_object({"rows": array_of(an_object({"id": INTEGER, "label": STRING}))}),
    "MapState": an_object({"state": enum_of("computing")}),
}

_KEYS: Json = {"anyOf": [array_of(STRING), array_of(INTEGER), array_of(ref("Base64"))]}
_QUERIES: dict[str, Json] = {
    "ids": array_of(INTEGER, "Rows whose neighbours are wanted."),
    "keys": _KEYS | {"description": "The same by keys of the table's vocabulary."},
    "vectors": array_of(array_of(NUMBER), "Vectors whose neighbours are wanted, as long as the table's rows."),
    "labels": array_of(STRING, "The same by labels of rows, such as titles; the answer has labels then."),
}
_OPTIONS: dict[str, Json] = {
    "k": INTEGER | {"description": "Most neighbours of each query; 10 if there is none."},
    "metric": enum_of(*METRICS)
    | {"description": "dot if there is none. l2 is the squared Euclidean distance, and smaller is nearer."},
    "filter": an_object(
        {},
        {
            "ids": array_of(INTEGER, "Only these rows, and those of keys, may be neighbours."),
            "keys": _KEYS,
            "exclude_ids": array_of(INTEGER, "These rows, and those of exclude_keys, may not."),
            "exclude_keys": _KEYS,
        },
    ),
    "feature": STRING | {"description": "The feature whose vocabulary has the keys, if the table has several."},
    "include_self": BOOLEAN | {"description": "Whether a row may be its own neighbour; false if there is none."},
    "exact": BOOLEAN
    | {"description": "Whether all rows are compared, although the table has an index; false if there is none."},
}
_LABELS: dict[str, Json] = {"labels": BOOLEAN | {"description": "Whether the answer has the labels of the rows."}}
NEIGHBORS: dict[str, Json] = {
    "NeighborsRequest": {
        "anyOf": [
            an_object({name: query}, _OPTIONS | ({} if name == "labels" else _LABELS)) | {"title": f"By {name}"}
            for name, query in _QUERIES.items()
        ]
    },
    "NeighborsResponse": an_object(
        {
            "ids": array_of(array_of(INTEGER), "For each query the nearest rows, the nearest first."),
            "scores": array_of(array_of({"type": ["number", "null"]}), "Their scores; null if infinite."),
        },
        {
            "keys": array_of(
                array_of({"anyOf": [STRING, INTEGER, ref("Base64"), {"type": "null"}]}),
                "Their keys, if the table has a vocabulary; null for a row without a key.",
            ),
            "labels": array_of(
                array_of({"type": ["string", "null"]}), "Their labels, if the request asks for them; null without one."
            ),
            "recall": NUMBER
            | {"description": "Share of the ten nearest rows that the index finds; without it all rows were compared."},
        },
    ),
}

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


def schemas(*, strict_json: bool) -> dict[str, Json]:
    """Returns the JSON Schemas of all request and answer bodies, by name.

    Args:
      strict_json: True: numbers that are not finite are null. False: they are bare NaN and Infinity, which JSON lacks.
    """
    number: Json = {"type": ["number", "null"], "description": "null is NaN or infinite."}
    return {"Float": number if strict_json else {"type": "number"}} | _SCHEMAS | _diffs()


def _diffs() -> dict[str, Json]:
    found = schemas_of(VersionDiff)
    described: Json = {"description": "Largest `percent` of an aligned table: the number that --max_drift judges."}
    fields = {"model": STRING, "drift_percent": NUMBER_OR_NULL | described, "drifted_cosine": NUMBER}
    found["VersionDiff"]["properties"] |= fields
    found["VersionDiff"]["required"] += fields
    return found


def _signature(default: str) -> Json:
    # The OpenAPI schema of signature_name has no field `default`, only a text in its description, because
    # openapi-typescript makes a field with a default required.
    return {"type": "string", "description": f"The signature to run; {default} if there is none."}


_LOOKUPS: dict[str, Json] = {
    "Vector": array_of(ref("Float"), "The numbers of one embedding."),
    "Vectors": {
        "anyOf": [array_of(ref("Vector")), array_of(array_of(ref("Vector"))), array_of(ref("Float"))],
        "description": "One vector per row; of a sequence one list of vectors per row; of a signature that computes "
        "one number per row, that number.",
    },
    "Id": {
        "anyOf": [INTEGER, STRING, ref("Base64")],
        "description": "A row of the table, or a key of the feature's vocabulary.",
    },
    "FeatureIds": {
        "anyOf": [array_of(ref("Id")), array_of(array_of(ref("Id")))],
        "description": "One id per row, or one list of ids per row for features that are combined or sequences.",
    },
    "LookupRequest": an_object(
        {"features": map_of(ref("FeatureIds"), "Ids by feature. Features may differ in their number of rows.")},
        {
            "weights": map_of(
                array_of(array_of({"type": "number"})),
                "For combined features: one factor per id, in lists as long as the ids'.",
            ),
            "signature_name": _signature("lookup"),
        },
    ),
    "LookupResponse": an_object({"embeddings": map_of(ref("Vectors"), "Vectors by feature.")}),
    "Table": an_object(
        {
            "name": STRING,
            "vocabulary_size": INTEGER | {"description": "Number of rows."},
            "embedding_dim": INTEGER | {"description": "Numbers of a row."},
            "dtype": enum_of("float32", "float16", "bfloat16", "float64", "int8", "int4"),
            "nbytes": INTEGER,
            "features": array_of(STRING, "Features that look their ids up here."),
        }
    ),
    "TablesResponse": an_object({"tables": array_of(ref("Table"))}),
    "FeatureCounts": an_object(
        {
            "ids": INTEGER,
            "unknown_ids": INTEGER | {"description": "Ids without a row."},
            "default_ids": INTEGER | {"description": "Those of them in whose place another row was read."},
        }
    ),
    "HotRow": an_object(
        {
            "id": INTEGER,
            "key": {"anyOf": [STRING, INTEGER, {"type": "null"}], "description": "Its key in the table's vocabulary."},
            "label": {"type": ["string", "null"], "description": "What people call it, such as a title."},
            "lookups": INTEGER | {"description": "Estimated."},
            "share": {"type": "number", "description": "Of the lookups of the table."},
        }
    ),
    "HotRowsResponse": an_object(
        {
            "model": STRING,
            "version": INTEGER,
            "table": STRING,
            "lookups": INTEGER | {"description": "Estimated number of ids with a row, since the version was loaded."},
            "distinct": INTEGER | {"description": "Estimated number of different rows in the sample."},
            "max_overcount": INTEGER | {"description": "By how much the lookups of a row may be too large."},
            "sampled": INTEGER | {"description": "Number of ids in the sample."},
            "oov_keys": INTEGER | {"description": "Keys that no vocabulary has."},
            "rows": array_of(ref("HotRow"), "The hottest first."),
            "features": map_of(ref("FeatureCounts"), "Exact counts by feature."),
        }
    ),
    "RowsRequest": an_object(
        {"ids": array_of(INTEGER)}, {"labels": BOOLEAN | {"description": "Whether the answer has the rows' labels."}}
    ),
    "RowsResponse": an_object(
        {"rows": array_of(ref("Vector"), "One row per id, in the ids' order.")},
        {"labels": array_of({"type": ["string", "null"]}, "Their labels, if the request asks for them.")},
    ),
}
_TENSORFLOW_SERVING: dict[str, Json] = {
    "Base64": an_object({"b64": STRING}, description="Bytes that are not UTF-8."),
    "Scalar": {"anyOf": [ref("Float"), STRING, BOOLEAN, ref("Base64")]},
    # In the OpenAPI schema, nested lists are written out level by level: for a recursive schema, openapi-typescript
    # makes a type that TypeScript refuses.
    "Tensor": {
        "anyOf": [
            ref("Scalar"),
            array_of(ref("Scalar")),
            array_of(array_of(ref("Scalar"))),
            array_of(array_of(array_of(ref("Scalar")))),
            array_of(array_of(array_of(array_of({})))),
        ],
        "description": "A value, or nested lists of values.",
    },
    "NamedTensors": map_of(ref("Tensor")),
    "PredictRequest": {
        "anyOf": [
            {
                "type": "object",
                "title": "By row",
                "required": ["instances"],
                "properties": {
                    "instances": array_of(
                        {"anyOf": [ref("NamedTensors"), ref("Tensor")]},
                        "One object per row, or bare values if the signature has one input.",
                    )
                    | {"minItems": 1},
                    "signature_name": _signature("serving_default"),
                },
            },
            {
                "type": "object",
                "title": "By column",
                "required": ["inputs"],
                "properties": {
                    "inputs": {
                        "anyOf": [ref("NamedTensors"), ref("Tensor")],
                        "description": "Tensors by input name, or the tensor of the only input.",
                    },
                    "signature_name": _signature("serving_default"),
                },
            },
        ]
    },
    "PredictResponse": {
        "anyOf": [
            an_object(
                {
                    "predictions": array_of(
                        {"anyOf": [ref("NamedTensors"), ref("Tensor")]},
                        "One object per row, or the bare values of the only output.",
                    )
                }
            ),
            an_object(
                {
                    "outputs": {
                        "anyOf": [ref("NamedTensors"), ref("Tensor")],
                        "description": "Tensors by output name, or the tensor of the only output.",
                    }
                }
            ),
        ]
    },
    "Feature": {
        "anyOf": [
            *({"type": kind} for kind in ("number", "string", "boolean")),
            ref("Base64"),
            array_of({"type": "number"}),
            array_of(STRING),
            array_of(BOOLEAN),
            array_of(ref("Base64")),
        ],
        "description": "A value, or a list of values of one kind.",
    },
    "Example": map_of(ref("Feature"), "A tf.Example: values by feature."),
    "ExamplesRequest": {
        "type": "object",
        "required": ["examples"],
        "properties": {
            "examples": array_of(ref("Example")) | {"minItems": 1},
            "context": map_of(ref("Feature"), "Features that all examples share."),
            "signature_name": _signature("serving_default"),
        },
    },
    "LabelScore": {
        "type": "array",
        "prefixItems": [STRING, ref("Float")],
        "minItems": 2,
        "maxItems": 2,
        "description": "A class: its label and its score.",
    },
    "ClassifyResponse": an_object({"results": array_of(array_of(ref("LabelScore")), "The classes of each example.")}),
    "RegressResponse": an_object({"results": array_of(ref("Float"), "A value for each example.")}),
    "VersionStatus": an_object(
        {
            "version": STRING,
            "state": enum_of("UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"),
            "status": an_object({"error_code": STRING, "error_message": STRING}, description="Why the load failed."),
        }
    ),
    "ModelsResponse": an_object(
        {"models": array_of(an_object({"name": STRING, "model_version_status": array_of(ref("VersionStatus"))}))}
    ),
    "StatusResponse": an_object({"model_version_status": array_of(ref("VersionStatus"), "Newest first.")}),
    "TensorInfo": {
        "type": "object",
        "required": ["dtype", "tensor_shape"],
        "properties": {
            "dtype": STRING | {"description": "A name of TensorFlow's DataType, such as DT_INT64."},
            "tensor_shape": an_object(
                {
                    "dim": array_of(
                        an_object({"size": STRING | {"description": "-1 is a size that is not known."}, "name": STRING})
                    ),
                    "unknown_rank": BOOLEAN,
                }
            ),
            "name": STRING | {"description": "The graph's tensor."},
        },
    },
    "Signature": {
        "type": "object",
        "required": ["inputs", "outputs", "method_name"],
        "properties": {
            "inputs": map_of(ref("TensorInfo")),
            "outputs": map_of(ref("TensorInfo")),
            "method_name": STRING,
            "defaults": map_of({"type": "object"}, "TensorProtos of inputs that a request may leave out."),
        },
    },
    "MetadataResponse": an_object(
        {
            "model_spec": an_object({"name": STRING, "signature_name": STRING, "version": STRING}),
            "metadata": an_object({"signature_def": an_object({"signature_def": map_of(ref("Signature"))})}),
        }
    ),
}
_OPERATIONS: dict[str, Json] = {
    "Error": an_object({"error": STRING}, {"models": array_of(STRING, "The models you may see; for an unknown one.")}),
    "Liveness": an_object({"status": enum_of("ok")}),
    "Readiness": an_object(
        {
            "status": enum_of("ready", "not ready"),
            "problems": map_of(STRING, "Why a model can not answer, by its name."),
        }
    ),
}
_SCHEMAS = _LOOKUPS | TABLE_VIEW | NEIGHBORS | _TENSORFLOW_SERVING | OPEN_INFERENCE | _OPERATIONS
