"""Declares the JSON bodies of requests and answers, from which pydantic makes the schemas of the OpenAPI document.

No route parses with these classes: routes keep their own error texts. openapi imports this module for the first reader
of the document, because making the classes would take the start tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from service.comparison import document
from service.errors import Code
from service.versions.neighbors import METRICS
from service.wire.oip_models import DATATYPES

Json = dict[str, Any]


class Open(BaseModel):
    """A JSON object that may have further fields."""

    model_config = ConfigDict(defer_build=True)


class Closed(Open, extra="forbid"):
    """A JSON object without further fields."""


def like(example: Any, description: str | None = None, **rules: Any) -> Any:
    """Describes a required field, with its value in the example of the body."""
    return Field(description=description, examples=[example], **rules)


def optional(description: str | None = None, example: str | None = None) -> Any:
    """Describes a field that a body may lack."""
    return Field(None, description=description, examples=[example] if example else None)


class Float(RootModel[float]):
    """A number; schemas() says how one that is not finite is written."""


class Base64(Closed):
    """Bytes that are not UTF-8."""

    b64: str


class Vector(RootModel[list[Float]]):
    """The numbers of one embedding."""


class Vectors(RootModel[list[Vector] | list[list[Vector]] | list[Float]]):
    """One vector per row; of a sequence one list of vectors per row; of a signature that computes one number per row,
    that number.
    """


class Id(RootModel[int | str | Base64]):
    """A row of the table, or a key of the feature's vocabulary."""


class FeatureIds(RootModel[list[Id] | list[list[Id]]]):
    """One id per row, or one list of ids per row for features that are combined or sequences."""


Label = Annotated[str | None, Field(description="What people call the row; null: it has no label.")]
Key = Annotated[str | int | None, Field(description="null: the row has no key.")]
Keys = list[str] | list[int] | list[Base64]
Numbers = list[float | None]


class LookupRequest(Closed):
    features: dict[str, FeatureIds] = like(
        {"user_id": [1, 42], "genres": [["Comedy", "Drama"], []]},
        "Ids by feature. Features may differ in their number of rows.",
    )
    weights: dict[str, list[list[float]]] = optional(
        "For combined features: one factor per id, in lists as long as the ids'."
    )
    signature_name: str = optional("The signature to run; lookup if there is none.")


EMBEDDINGS = {"user_id": [[0.12, -0.5, 0.33, 0.04], [0.7, 0.01, -0.2, 0.9]], "genres": [[0.5, 0.25], [0.0, 0.0]]}


class LookupResponse(Closed):
    embeddings: dict[str, Vectors] = like(EMBEDDINGS, "Vectors by feature.")


class Table(Closed):
    name: str = like("film")
    vocabulary_size: int = like(1683, "Number of rows.")
    embedding_dim: int = like(32, "Numbers of a row.")
    dtype: Literal["float32", "float16", "bfloat16", "float64", "int8", "int4"]
    nbytes: int = like(215424)
    features: list[str] = like(["film_id", "recent_films"], "Features that look their ids up here.")
    unknown_key_rows: list[tuple[int, int]] = like(
        [(0, 0)], "Rows that lookups read for keys that no vocabulary has: the first and the last of each run of rows."
    )


class TablesResponse(Closed):
    tables: list[Table]


class FeatureCounts(Closed):
    ids: int = like(160_010)
    unknown_ids: int = like(10, "Ids without a row.")
    default_ids: int = like(0, "Those of them in whose place another row was read.")


class HotRow(Closed):
    id: int = like(50)
    key: str | int | None = like(None, "Its key in the table's vocabulary.")
    label: str | None = like("Star Wars (1977)", "What people call it, such as a title.")
    lookups: int = like(4800, "Estimated.")
    share: float = like(0.03, "Of the lookups of the table.")


class HotRowsResponse(Closed):
    model: str = like("movielens")
    version: int = like(1)
    table: str = like("film")
    lookups: int = like(160_000, "Estimated number of ids with a row, since the version was loaded.")
    distinct: int = like(1201, "Estimated number of different rows in the sample.")
    max_overcount: int = like(0, "By how much the lookups of a row may be too large.")
    sampled: int = like(5000, "Number of ids in the sample.")
    oov_keys: int = like(3, "Keys that no vocabulary has.")
    rows: list[HotRow] = Field(description="The hottest first.")
    features: dict[str, FeatureCounts] = like(
        {"film_id": {"ids": 160_010, "unknown_ids": 10, "default_ids": 0}}, "Exact counts by feature."
    )


class RowsRequest(Closed):
    ids: list[int] = like([50, 1])
    labels: bool = optional("Whether the answer has the rows' labels.")


class RowsResponse(Closed):
    rows: list[Vector] = like([[0.1, -0.2], [0.3, 0.4]], "One row per id, in the ids' order.")
    labels: list[str | None] = optional("Their labels, if the request asks for them.")


class TablePage(Closed):
    version: int = like(2)
    start: int = like(0, "Id of the first row.")
    total: int = like(1683, "Rows of the table.")
    keys: list[Key] = like([], "Empty for a table without a vocabulary.")
    labels: list[Label] = like([None], "Empty for a table without labels.")
    norms: Numbers = like([1.25], "Euclidean length of each row; null is NaN or infinite.")


class RowDelta(Closed):
    sequence: int = like(7)
    time_s: float | None = like(1760000000.0, "When the delta was made, since 1970.")


class TableRow(Closed):
    version: int = like(2)
    id: int = like(50)
    keys: dict[str, Key] = like({}, "The row's key, by feature with a vocabulary.")
    label: Label = like("Star Wars (1977)")
    is_known: bool = like(True, "false: the key led to a row for unknown keys.")
    values: Numbers = like([0.5, -0.25])
    norm: float | None = like(0.559)
    delta: RowDelta | None = Field(
        description="The delta that wrote the row last; null: the row is as the version was saved."
    )


class TableMap(Closed):
    version: int = like(2)
    total: int = like(3, "Rows of the table; a large table is sampled.")
    explained: list[float] = like([0.9, 0.1], "Shares of the variance along x and y.")
    ids: list[int] = like([0, 1, 2])
    x: Numbers = like([-1.0, 0.0, 1.0])
    y: Numbers = like([0.1, -0.2, 0.1])
    norms: Numbers = like([1.0, 0.5, 1.0])


class TableDrift(Closed):
    version: int = like(2)
    older: int = like(1, "The older version.", alias="from")
    is_aligned: bool = like(True, "A rotation between the versions was undone.")
    values: Numbers = like([0.0, 0.25, None], "null: the older version lacks the row, or the row has no direction.")


class TableNames(Closed):
    version: int = like(2)
    keys: dict[str, list[Key]] = like({"film_id": [None, 1, 2]}, "The rows' keys, by feature with a vocabulary.")
    labels: list[Label] = like(["", "Toy Story (1995)", "GoldenEye (1995)"], "Empty for a table without labels.")


class FoundRow(Closed):
    id: int = like(50)
    label: str | None = like("Star Wars (1977)")
    by: str = like("label")


class FoundRows(Closed):
    rows: list[FoundRow]


class MapState(Closed):
    state: Literal["computing"]


class NeighborFilter(Closed):
    ids: list[int] = optional("Only these rows, and those of keys, may be neighbours.")
    keys: Keys = optional()
    exclude_ids: list[int] = optional("These rows, and those of exclude_keys, may not.")
    exclude_keys: Keys = optional()


class _NeighborOptions(Closed):
    k: int = optional("Most neighbours of each query; 10 if there is none.")
    metric: Literal[METRICS] = Field(  # type: ignore[valid-type]
        None, description="dot if there is none. l2 is the squared Euclidean distance, and smaller is nearer."
    )
    filter: NeighborFilter = optional()
    feature: str = optional("The feature whose vocabulary has the keys, if the table has several.")
    include_self: bool = optional("Whether a row may be its own neighbour; false if there is none.")
    exact: bool = optional("Whether all rows are compared, although the table has an index; false if there is none.")


class _LabelOptions(_NeighborOptions):
    labels: bool = optional("Whether the answer has the labels of the rows.")


class NeighborsOfIds(_LabelOptions, title="By ids"):
    ids: list[int] = like([50], "Rows whose neighbours are wanted.")


class NeighborsOfKeys(_LabelOptions, title="By keys"):
    keys: Keys = like(["Drama"], "The same by keys of the table's vocabulary.")


class NeighborsOfVectors(_LabelOptions, title="By vectors"):
    vectors: list[list[float]] = like(
        [[0.1, -0.2]], "Vectors whose neighbours are wanted, as long as the table's rows."
    )


class NeighborsOfLabels(_NeighborOptions, title="By labels"):
    labels: list[str] = like(
        ["Star Wars (1977)"], "The same by labels of rows, such as titles; the answer has labels then."
    )


class NeighborsRequest(RootModel[NeighborsOfIds | NeighborsOfKeys | NeighborsOfVectors | NeighborsOfLabels]):
    pass


class NeighborsResponse(Closed):
    ids: list[list[int]] = like([[172, 99, 183]], "For each query the nearest rows, the nearest first.")
    scores: list[Numbers] = like([[0.97, 0.96, 0.91]], "Their scores; null if infinite.")
    keys: list[list[str | int | Base64 | None]] = optional(
        "Their keys, if the table has a vocabulary; null for a row without a key."
    )
    labels: list[list[str | None]] = optional("Their labels, if the request asks for them; null without one.")
    recall: float = optional("Share of the ten nearest rows that the index finds; without it all rows were compared.")


class Scalar(RootModel[Float | str | bool | Base64]):
    """One value of a tensor."""


# Nested lists are written out level by level: for a recursive schema, openapi-typescript makes a type that TypeScript
# refuses.
class Tensor(
    RootModel[Scalar | list[Scalar] | list[list[Scalar]] | list[list[list[Scalar]]] | list[list[list[list[Any]]]]]
):
    """A value, or nested lists of values."""


class NamedTensors(RootModel[dict[str, Tensor]]):
    """Tensors by name of the input or output."""


_SIGNATURE = optional("The signature to run; serving_default if there is none.")


class PredictByRow(Open, title="By row"):
    instances: list[NamedTensors | Tensor] = like(
        [1.0], "One object per row, or bare values if the signature has one input.", min_length=1
    )
    signature_name: str = _SIGNATURE


class PredictByColumn(Open, title="By column"):
    inputs: NamedTensors | Tensor = like([1.0], "Tensors by input name, or the tensor of the only input.")
    signature_name: str = _SIGNATURE


class PredictRequest(RootModel[PredictByRow | PredictByColumn]):
    pass


class Predictions(Closed):
    predictions: list[NamedTensors | Tensor] = like(
        [4.12], "One object per row, or the bare values of the only output."
    )


class Outputs(Closed):
    outputs: NamedTensors | Tensor = like([4.12, 3.07], "Tensors by output name, or the tensor of the only output.")


class PredictResponse(RootModel[Predictions | Outputs]):
    pass


class Feature(RootModel[float | str | bool | Base64 | list[float] | list[str] | list[bool] | list[Base64]]):
    """A value, or a list of values of one kind."""


class Example(RootModel[dict[str, Feature]]):
    """A tf.Example: values by feature."""


class ExamplesRequest(Open):
    examples: list[Example] = Field(min_length=1)
    context: dict[str, Feature] = optional("Features that all examples share.")
    signature_name: str = _SIGNATURE


class LabelScore(RootModel[tuple[str, Float]]):
    """A class: its label and its score."""


class ClassifyResponse(Closed):
    results: list[list[LabelScore]] = like(
        [[["cat", 0.9], ["dog", 0.1]], [["cat", 0.2], ["dog", 0.8]]], "The classes of each example."
    )


class RegressResponse(Closed):
    results: list[Float] = like([2.5, 4.0], "A value for each example.")


class LoadStatus(Closed):
    """The error of a version's last load."""

    error_code: str
    error_message: str


_OK = {"error_code": "OK", "error_message": ""}
_STATUSES = [{"version": "2", "state": "LOADING", "status": _OK}, {"version": "1", "state": "AVAILABLE", "status": _OK}]


class VersionStatus(Closed):
    version: str
    state: Literal["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: LoadStatus = Field(description="Why the load failed.")


class ModelVersions(Closed):
    name: str = like("movielens")
    model_version_status: list[VersionStatus] = like(_STATUSES[1:])


class ModelsResponse(Closed):
    models: list[ModelVersions]


class StatusResponse(Closed):
    model_version_status: list[VersionStatus] = like(_STATUSES, "Newest first.")


_UNKNOWN_SIZE = "-1 is a size that is not known."


class Dimension(Closed):
    size: str = Field(description=_UNKNOWN_SIZE)
    name: str


class TensorShape(Closed):
    dim: list[Dimension]
    unknown_rank: bool


class TensorInfo(Open):
    dtype: str = Field(description="A name of TensorFlow's DataType, such as DT_INT64.")
    tensor_shape: TensorShape
    name: str = optional("The graph's tensor.")


class Signature(Open):
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    method_name: str
    defaults: dict[str, dict[str, Any]] = optional("TensorProtos of inputs that a request may leave out.")


class ModelSpec(Closed):
    name: str = like("movielens")
    signature_name: str = like("")
    version: str = like("1")


def _tensor_info(dtype: str, name: str, *sizes: int) -> Json:
    dim = [{"size": str(size), "name": ""} for size in sizes]
    return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": False}, "name": name}


class SignatureMap(Closed):
    signature_def: dict[str, Signature] = like(
        {
            "lookup": {
                "inputs": {"user_id": _tensor_info("DT_INT64", "lookup_user_id:0", -1)},
                "outputs": {"user_id": _tensor_info("DT_FLOAT", "PartitionedCall:0", -1, 32)},
                "method_name": "tensorflow/serving/predict",
                "defaults": {},
            }
        }
    )


class Metadata(Closed):
    signature_def: SignatureMap


class MetadataResponse(Closed):
    model_spec: ModelSpec
    metadata: Metadata


class Datatype(RootModel[str]):
    """A datatype of the Open Inference Protocol."""

    model_config = ConfigDict(json_schema_extra={"enum": list(DATATYPES.values())})


class Parameters(RootModel[dict[str, str | float | bool]]):
    """Parameters by name."""


class InferInput(Open):
    name: str
    datatype: Datatype
    shape: list[Annotated[int, Field(ge=0)]]
    parameters: Parameters = optional()
    data: list[Tensor] = optional(
        "The values, flat or nested; left out if parameters.binary_data_size says how many of the bytes "
        "behind the JSON are this tensor's.",
    )


class InferParameters(Open):
    signature_name: str = optional()
    binary_data_output: bool = optional()


class RequestedOutput(Open):
    name: str
    parameters: Parameters = optional()


class InferRequest(Open):
    id: str = optional()
    parameters: InferParameters = optional(
        "signature_name chooses the signature: by default serving_default if the model has it, else "
        "lookup. binary_data_output asks for binary outputs. Others are ignored.",
    )
    inputs: list[InferInput]
    outputs: list[RequestedOutput] = optional()


class InferOutput(Closed):
    name: str
    datatype: Datatype
    shape: list[int]
    parameters: Parameters = optional()
    data: list[Tensor] = optional("The values in row order.")


class InferResponse(Closed):
    model_name: str = like("movielens")
    model_version: str = like("1")
    parameters: Parameters = like({"signature_name": "lookup"})
    outputs: list[InferOutput] = like(
        [{"name": "user_id", "datatype": "FP32", "shape": [2, 2], "data": [0.12, -0.5, 0.7, 0.01]}]
    )
    id: str = optional(example="42")


class TensorMetadata(Closed):
    name: str = like("user_id")
    datatype: str = like("INT64")
    shape: list[int] = like([-1], _UNKNOWN_SIZE)


class ModelMetadata(Closed):
    name: str = like("movielens")
    versions: list[str] = like(["2", "1"], "Those that can answer, newest first.")
    platform: str = like("tensorflow_savedmodel")
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata] = like([{"name": "user_id", "datatype": "FP32", "shape": [-1, 32]}])


class ConfiguredTensor(Closed):
    name: str
    data_type: str
    dims: list[int] = Field(description=_UNKNOWN_SIZE)
    optional: bool = optional()


class ModelConfig(Closed):
    name: str = like("movielens")
    platform: str = like("tensorflow_savedmodel")
    backend: str = like("")
    max_batch_size: int = like(0)
    input: list[ConfiguredTensor] = like(
        [{"name": "user_id", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}]
    )
    output: list[ConfiguredTensor] = like([{"name": "user_id", "data_type": "TYPE_FP32", "dims": [-1, 32]}])


class ModelReady(Closed):
    name: str = like("movielens")
    ready: bool = like(True)


class ServerMetadata(Closed):
    name: str = like("embedding-server")
    version: str = like("1.0.0")
    extensions: list[str] = like(["binary_tensor_data", "parameters"])


class ServerLive(Closed):
    live: bool = like(True)


class ServerReady(Closed):
    ready: bool = like(True)


class IndexRequest(Open):
    ready: bool = optional()


class IndexEntry(Closed):
    name: str = like("movielens")
    version: str = like("1", "Empty for a model that has no version.")
    state: Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
    reason: str = like("")


class IndexResponse(RootModel[list[IndexEntry]]):
    pass


class ErrorCode(RootModel[Code]):
    """The canonical code of an error, a name of google.rpc.Code; several codes share an HTTP status."""


class Error(Closed):
    error: str = like("Servable not found for request: Latest(movielens)")
    models: list[str] = optional("The models you may see; for an unknown one.")


class Liveness(Closed):
    status: Literal["ok"]


class Readiness(Closed):
    status: Literal["ready", "not ready"]
    problems: dict[str, str] = like({}, "Why a model can not answer, by its name.")


@dataclass(frozen=True, kw_only=True)
class VersionDiff(document.VersionDiff):
    """The differences between two versions of a model."""

    model: str
    drift_percent: float | None = like(
        0.12, "Largest `percent` of an aligned table: the number that --max_drift judges."
    )
    drifted_cosine: float


class _Schemas(GenerateJsonSchema):
    """Makes schemas without defaults: openapi-typescript makes a field with a default required."""

    def default_schema(self, schema: Any) -> Json:
        return self.generate_inner(schema["schema"])

    def dataclass_schema(self, schema: Any) -> Json:
        found = super().dataclass_schema(schema)
        return found | {"additionalProperties": False, "required": list(found["properties"])}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas(kinds: Iterable[Any], *, strict_json: bool) -> dict[str, Json]:
    """Returns the JSON schemas of bodies, and of the types in them, by name.

    Args:
      strict_json: True: numbers that are not finite are null. False: they are bare NaN and Infinity, which JSON lacks.
    """
    _, found = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in kinds],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    number = {"type": ["number", "null"], "description": "null is NaN or infinite."}
    definitions: dict[str, Json] = found["$defs"]
    return definitions | {"Float": number if strict_json else {"type": "number"}}


def example_of(schema: Json, definitions: Mapping[str, Json]) -> Any:
    """Makes an example of a body from the examples of its fields; a field that it may lack needs one."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("type") == "array":
        return [example_of(schema["items"], definitions)]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], definitions)
    fields: Json = schema["properties"]
    return {
        name: example_of(field, definitions)
        for name, field in fields.items()
        if name in schema["required"] or "examples" in field
    }
