"""Defines, by name, the JSON Schemas of request and answer bodies."""

from __future__ import annotations

from service.http.diff_schemas import DIFFS
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
from service.http.neighbor_schemas import NEIGHBORS
from service.http.oip_schemas import OPEN_INFERENCE
from service.http.table_view_schemas import TABLE_VIEW


def schemas(*, strict_json: bool) -> dict[str, Json]:
    """Returns the JSON Schemas of all request and answer bodies, by name.

    Args:
      strict_json: True: numbers that are not finite are null. False: they are bare NaN and Infinity, which JSON lacks.
    """
    number: Json = {"type": ["number", "null"], "description": "null is NaN or infinite."}
    return {"Float": number if strict_json else {"type": "number"}} | _SCHEMAS


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
_SCHEMAS = _LOOKUPS | TABLE_VIEW | NEIGHBORS | _TENSORFLOW_SERVING | OPEN_INFERENCE | DIFFS | _OPERATIONS
