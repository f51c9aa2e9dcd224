"""Describes the operations of the OpenAPI document: their texts, bodies and parameters, by the names that routes give.

The examples are for a model "movielens": features user_id, film_id and occupation have one id per row, genres and
recent_films any number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.http import bodies
from service.http.bodies import Json
from service.versions.counts import DEFAULT_HOT_ROWS, MAX_HOT_ROWS

EMBEDDINGS, TENSORFLOW_SERVING, OPEN_INFERENCE = "Embeddings", "TensorFlow Serving", "Open Inference Protocol"
VERSIONS, OPERATIONS = "Versions", "Operations"
TAGS = {
    EMBEDDINGS: "Lookups and tables.",
    TENSORFLOW_SERVING: "Drop-in REST API of tensorflow_model_server.",
    OPEN_INFERENCE: "Version 2, with the binary tensor data extension.",
    VERSIONS: "What a new version changed, and which rows are hot.",
    OPERATIONS: "For orchestrators and monitoring.",
}
# Status of a refusal -> its description, and an example of its text.
ERRORS: Mapping[int, tuple[str, str]] = {
    400: (
        "The request can not succeed as it was sent",
        'input "user_id": id 6041 at position 1 is out of range, its table has ids 0 to 6040.',
    ),
    401: (
        "The server has callers, and no credentials of one were sent",
        "Valid credentials are required: Authorization: Bearer <token>, or a certificate.",
    ),
    403: ("The caller lacks a right", 'Caller "ann" lacks the right "metadata" on model "movielens".'),
    404: ("No such model, version or table", "Servable not found for request: Latest(movielens)"),
    413: ("The body is over the limit", "The body of 99000000 bytes is over the limit of 33554432 bytes."),
    500: ("A fault of the server", "Internal error; the server's log has the cause, request id 5f2c-1a"),
    503: (
        "The model is loading, the server is shutting down or overloaded",
        'Model "movielens" is not ready: version 1 is LOADING',
    ),
    504: ("Out of time", "Timed out: the request took longer than 30 s."),
}


@dataclass(frozen=True)
class Answer:
    """The answer with one status. kind: the class of its body, str or dict. examples: in place of the fields'."""

    about: str
    kind: Any
    examples: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Operation:
    """The description of a route in the OpenAPI document, without the parameters in its path.

    body: the class of a request's body; examples: of these, by name. errors: statuses of refusals. more: further
    answers, by status. is_computed: a version of a model computes the answer, and a header names it. has_binary: both
    bodies may be bytes that begin with the JSON.
    """

    tag: str
    summary: str
    answer: Answer
    body: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    errors: Sequence[int] = tuple(ERRORS)
    more: Mapping[int, Answer] = field(default_factory=dict)
    is_computed: bool = False
    has_binary: bool = False
    parameters: Sequence[Json] = ()


def _query(name: str, kind: str, description: str, **more: Any) -> Json:
    schema = {"type": kind}
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description} | more


_REFUSED = (401, 403)
_READ_ERRORS = (400, *_REFUSED, 404, 503)
_COMPUTING = {202: Answer("The server computes the answer; ask again", bodies.MapState)}
_HOT_ROWS = {"type": "integer", "minimum": 1, "maximum": MAX_HOT_ROWS}
_SIGNATURE = _query("signature_name", "string", "Default: serving_default where the model has it, else lookup.")
_LENGTH_HEADER = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Bytes of the JSON, where binary data follows it.",
}
_GENRES = [["Comedy", "Drama"], []]
_LOOKUPS = {
    "two users and their genres": {"features": {"user_id": [1, 42], "genres": _GENRES}},
    "weighted history": {
        "features": {"recent_films": [[50, 1, 2]]},
        "weights": {"recent_films": [[1.0, 0.5, 0.25]]},
    },
    "as on a TPU": {"features": {"film_id": [50]}, "signature_name": "lookup_tpu_tensor_core"},
}
_ROW = {"user_id": 1, "film_id": 50, "occupation": 3, "genres": ["Drama"], "recent_films": [1, 2]}
_COLUMNS = {"user_id": [1, 42], "film_id": [50, 1], "occupation": [3, 4]}
_PREDICTS = {
    "rows": {"instances": [_ROW]},
    "columns": {"inputs": _COLUMNS | {"genres": _GENRES, "recent_films": [[1, 2], []]}},
    "a lookup, by column": {"signature_name": "lookup", "inputs": {"user_id": [1, 42], "genres": _GENRES}},
}
_PREDICTED = {
    "rows": {"predictions": [4.12]},
    "columns": {"outputs": [4.12, 3.07]},
    "a lookup, by column": {"outputs": bodies.EMBEDDINGS},
}
_EXAMPLES = {
    "two examples": {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}, {"x": 4.0}]},
    "a context": {"context": {"user": "ann"}, "examples": [{"x": [1.0]}]},
}
_NEIGHBORS = {
    "neighbours of a row": {"ids": [50], "k": 3, "metric": "cosine"},
    "of a vector, among some rows": {"vectors": [[0.1, -0.2]], "k": 2, "filter": {"ids": [1, 2, 3]}},
}
_INFERS = {
    "two users": {
        "id": "42",
        "parameters": {"signature_name": "lookup"},
        "inputs": [{"name": "user_id", "datatype": "INT64", "shape": [2], "data": [1, 42]}],
        "outputs": [{"name": "user_id"}],
    },
    "two lists of genres, the second empty": {
        "parameters": {"signature_name": "lookup"},
        "inputs": [
            {"name": "genres__values", "datatype": "BYTES", "shape": [2], "data": ["Comedy", "Drama"]},
            {"name": "genres__row_splits", "datatype": "INT64", "shape": [3], "data": [0, 2, 2]},
        ],
    },
}
_NONE: Json = {"count": 0, "first": []}
_FILM_DIFF: Json = {
    "table": "film",
    "matched_by": "key",
    "old_rows": 1683,
    "new_rows": 1684,
    "old_dim": 32,
    "new_dim": 32,
    "old_dtype": "float32",
    "new_dtype": "float32",
    "added": {"count": 1, "first": ["1683"]},
    "removed": _NONE,
    "moved": _NONE,
    "common": 1682,
    "drift": {
        "rows": 1682,
        "is_aligned": True,
        "cosines": {"edges": [-1.0, 0.0, 1.0], "counts": [2, 1680]},
        "norm_ratios": {"edges": [0.5, 1.0, 2.0], "counts": [800, 882]},
        "median_cosine": 0.93,
        "median_unaligned_cosine": 0.01,
        "median_norm_ratio": 1.02,
        "outlying": 0,
        "directions": [29.4, 29.1],
        "equal": 0,
        "drifted": 2,
        "percent": 0.12,
        "worst": [{"name": "1653", "old_id": 1653, "new_id": 1653, "cosine": -0.2}],
    },
    "neighbours": {"k": 10, "queries": 200, "is_hottest": True, "pool": 1682, "overlap": 0.71, "chance": 0.006},
    "notes": [],
}
_DIFF: Json = {
    "model": "movielens",
    "old": "1",
    "new": "2",
    "tables": [_FILM_DIFF],
    "predictions": None,
    "added_tables": [],
    "removed_tables": [],
    "notes": [],
    "drift_percent": 0.12,
    "drifted_cosine": 0.3,
}

DESCRIBED: Mapping[str, Operation] = {
    "lookup": Operation(
        EMBEDDINGS,
        "Look embeddings up",
        Answer(
            "One vector per row, or a list of them for a sequence, for the features that were sent",
            bodies.LookupResponse,
        ),
        bodies.LookupRequest,
        _LOOKUPS,
        is_computed=True,
    ),
    "listTables": Operation(
        EMBEDDINGS, "List tables", Answer("The tables, by name", bodies.TablesResponse), errors=_READ_ERRORS
    ),
    "readRows": Operation(
        EMBEDDINGS,
        "Read rows of a table",
        Answer("The rows, in the order of the ids", bodies.RowsResponse),
        bodies.RowsRequest,
        {"two rows": {"ids": [50, 1]}},
        is_computed=True,
    ),
    "findNeighbors": Operation(
        EMBEDDINGS,
        "Find the nearest rows",
        Answer("The nearest rows of each query", bodies.NeighborsResponse),
        bodies.NeighborsRequest,
        _NEIGHBORS,
        is_computed=True,
    ),
    "pageRows": Operation(
        EMBEDDINGS,
        "Rows of a table, by page",
        Answer("The rows' keys and norms", bodies.TablePage),
        parameters=[_query("start", "integer", "First row id"), _query("count", "integer", "Rows, 1 to 1000")],
    ),
    "showRow": Operation(
        EMBEDDINGS,
        "One row, by id or key",
        Answer("The row", bodies.TableRow),
        parameters=[
            _query("id", "integer", "Row id", example=1),
            _query("key", "string", "A key of the vocabulary"),
            _query("feature", "string", "Whose vocabulary"),
        ],
    ),
    "projectTable": Operation(
        EMBEDDINGS,
        "Map of a table",
        Answer("The points of the table's map, at most 100,000", bodies.TableMap),
        more=_COMPUTING,
    ),
    "driftOfTable": Operation(
        EMBEDDINGS,
        "Drift of the rows of a map",
        Answer("1 - cosine for each point of the map", bodies.TableDrift),
        more=_COMPUTING,
        parameters=[_query("from", "integer", "The older version", required=True, example=1)],
    ),
    "namesOfMap": Operation(
        EMBEDDINGS,
        "Names of the rows of a map",
        Answer("The keys and the label of each point of the map", bodies.TableNames),
        more=_COMPUTING,
    ),
    "findRows": Operation(
        EMBEDDINGS,
        "Rows that a text may mean",
        Answer("The rows; of rows found by label, those whose labels begin with the text come first", bodies.FoundRows),
        parameters=[
            _query("text", "string", "A row id, a key, or a part of a label", example="Star Wars"),
            _query("label", "string", "A part of a label; give this or text"),
            _query("count", "integer", "Most rows, 1 to 1000; 50 without it"),
        ],
    ),
    "predict": Operation(
        TENSORFLOW_SERVING,
        "Run a signature",
        Answer("The outputs; a single output has no name", bodies.PredictResponse, _PREDICTED),
        bodies.PredictRequest,
        _PREDICTS,
        is_computed=True,
    ),
    "classify": Operation(
        TENSORFLOW_SERVING,
        "Classify examples",
        Answer("[label, score] of each class, for each example", bodies.ClassifyResponse),
        bodies.ExamplesRequest,
        _EXAMPLES,
        is_computed=True,
    ),
    "regress": Operation(
        TENSORFLOW_SERVING,
        "Regress over examples",
        Answer("A value for each example", bodies.RegressResponse),
        bodies.ExamplesRequest,
        _EXAMPLES,
        is_computed=True,
    ),
    "getModels": Operation(
        TENSORFLOW_SERVING,
        "Models and their versions",
        Answer("The models you may see", bodies.ModelsResponse),
        errors=(401,),
    ),
    "getStatus": Operation(
        TENSORFLOW_SERVING,
        "State of a model's versions",
        Answer("Versions, newest first", bodies.StatusResponse),
        errors=(400, *_REFUSED, 404),
    ),
    "getMetadata": Operation(
        TENSORFLOW_SERVING,
        "Signatures of a model",
        Answer("The signatures", bodies.MetadataResponse),
        errors=_READ_ERRORS,
    ),
    "infer": Operation(
        OPEN_INFERENCE,
        "Run a signature",
        Answer("The outputs; binary data follows the JSON if you ask for it", bodies.InferResponse),
        bodies.InferRequest,
        _INFERS,
        is_computed=True,
        has_binary=True,
        parameters=[_LENGTH_HEADER],
    ),
    "describeModel": Operation(
        OPEN_INFERENCE,
        "Inputs and outputs of a model",
        Answer("Those of one signature", bodies.ModelMetadata),
        errors=_READ_ERRORS,
        parameters=[_SIGNATURE],
    ),
    "getModelConfig": Operation(
        OPEN_INFERENCE,
        "Configuration of a model",
        Answer("Tensors of one signature, and which inputs may be left out", bodies.ModelConfig),
        errors=_READ_ERRORS,
        parameters=[_SIGNATURE],
    ),
    "isModelReady": Operation(
        OPEN_INFERENCE,
        "Whether a model can answer",
        Answer("It can answer", bodies.ModelReady),
        errors=_READ_ERRORS,
    ),
    "describeServer": Operation(
        OPEN_INFERENCE, "About the server", Answer("Name, version and extensions", bodies.ServerMetadata), errors=()
    ),
    "isLive": Operation(OPEN_INFERENCE, "Whether the server is live", Answer("It is", bodies.ServerLive), errors=()),
    "isReady": Operation(
        OPEN_INFERENCE,
        "Whether the server is ready",
        Answer("It is", bodies.ServerReady),
        errors=(),
        more={503: Answer("Send no requests here", bodies.ServerReady, {"not ready": {"ready": False}})},
    ),
    "listRepository": Operation(
        OPEN_INFERENCE,
        "Models, versions and their states",
        Answer("One entry per version", bodies.IndexResponse),
        bodies.IndexRequest,
        {"all": {}, "those that can answer": {"ready": True}},
        errors=(400, 401, 413),
    ),
    "hotRows": Operation(
        VERSIONS,
        "Hot rows of a table",
        Answer("Hot rows, the hottest first", bodies.HotRowsResponse),
        parameters=[_query("k", "integer", f"Rows; {DEFAULT_HOT_ROWS} without it.", schema=_HOT_ROWS)],
    ),
    "diff": Operation(
        VERSIONS,
        "Compare two versions",
        Answer("What changed from the version to version `to`", bodies.VersionDiff, {"a rotation": _DIFF}),
        parameters=[_query("to", "integer", "The newer version", required=True, example=2)],
    ),
    "healthz": Operation(OPERATIONS, "Liveness", Answer("The process lives", bodies.Liveness), errors=()),
    "readyz": Operation(
        OPERATIONS,
        "Readiness",
        Answer("Send requests here", bodies.Readiness),
        errors=(),
        more={
            503: Answer(
                "Send no requests here",
                bodies.Readiness,
                {"not ready": {"status": "not ready", "problems": {"movielens": "version 2 is LOADING"}}},
            )
        },
    ),
    "metrics": Operation(OPERATIONS, "Metrics", Answer("Prometheus text", str), errors=_REFUSED),
    "statusz": Operation(OPERATIONS, "Status page", Answer("this server's state", dict), errors=_REFUSED),
}
