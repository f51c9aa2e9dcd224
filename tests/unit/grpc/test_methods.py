"""The methods take and return bytes: answers and texts of TensorFlow Serving and of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor, encode_tensor
from service.control.engine import Engine
from service.errors import (
    DeadlineExceeded,
    InputMismatch,
    ModelNotFound,
    ServiceError,
    TableNotFound,
    Unimplemented,
    VersionNotFound,
)
from service.grpc.methods import (
    INFERENCE_SERVICE,
    INFERENCE_UNIMPLEMENTED,
    SERVING_UNIMPLEMENTED,
    open_inference_methods,
    service_methods,
)
from service.types import Array, ModelRef
from service.versions.registry import Registry
from service.versions.servable import Servable
from service.wire.api import PREDICT
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import NumpyTable, specs
from tests.unit.versions.fakes import FakeBackend

PREDICTION = "/tensorflow.serving.PredictionService"
MODEL = "/tensorflow.serving.ModelService"

Call = Callable[..., Any]


def vector(values: list[Any], dtype: str) -> Array:
    """Returns an array."""
    import numpy as np

    return np.array(values, dtype)


def message(name: str, *, model: str | None = "m", **spec: Any) -> Any:
    """Builds a request message with a model spec, unless model is None."""
    request = message_class(f"tensorflow.serving.{name}")()
    if model is not None:
        request.model_spec.SetInParent()
        request.model_spec.name = model
        for key, value in spec.items():
            if key == "version":
                request.model_spec.version.value = value
            else:
                setattr(request.model_spec, key, value)
    return request


def predict_request(inputs: dict[str, Array], *, output_filter: tuple[str, ...] = (), **spec: Any) -> Any:
    """Builds a PredictRequest."""
    request = message("PredictRequest", **spec)
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(b"".join(encode_tensor(name, array)))
    request.output_filter.extend(output_filter)
    return request


def search_request(*ids: int, k: int = 1, **spec: Any) -> Any:
    """Builds a PredictRequest that searches the k nearest rows of each of these rows of the table "t"."""
    inputs = {"table": vector([b"t"], "object"), "ids": vector(list(ids), "int64"), "k": vector([k], "int64")}
    return predict_request(inputs, signature_name="neighbors", **spec)


def found(response: Any) -> list[int]:
    """Returns the ids in the answer to a search."""
    return decode_tensor("ids", response.outputs["ids"], 1000).reshape(-1).tolist()


@pytest.fixture
def call(engine: Engine) -> Call:
    """Returns a function that calls a gRPC method with a message and returns the answer as a message."""
    methods = service_methods(engine)

    def call(path: str, request: Any, deadline_s: float | None = None) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        name = path.rpartition("/")[2]
        return message_class(f"tensorflow.serving.{name}Response").FromString(methods[path](data, deadline_s))

    return call


def test_a_search_tells_what_it_resolved(call: Call) -> None:
    # Row i of the table is [2 i, 2 i + 1].
    response = call(f"{PREDICTION}/Predict", search_request(0, 3))
    assert found(response) == [3, 2]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "neighbors")


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (message("PredictRequest", model=None), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (message("PredictRequest", model=""), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (b"\xff\xff", "INVALID_ARGUMENT", "The request is not a valid tensorflow.serving.PredictRequest message."),
    ],
)
def test_a_search_that_can_not_be_read_is_refused(call: Call, request_: Any, code: str, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        call(f"{PREDICTION}/Predict", request_)
    assert caught.value.code == code
    assert caught.value.message.startswith(text)


def test_work_that_is_late_is_not_begun(call: Call, engine: Engine, table: NumpyTable) -> None:
    with pytest.raises(DeadlineExceeded):
        call(f"{PREDICTION}/Predict", search_request(0), engine.clock() - 1)
    assert table.num_searches == 0


def test_requests_are_counted_also_where_they_never_reach_a_model(call: Call, observer: RecordingObserver) -> None:
    call(f"{PREDICTION}/Predict", search_request(0, 1))
    with pytest.raises(ServiceError):
        call(f"{PREDICTION}/Predict", b"\xff")
    assert [(r["api"], r["method"], r["model"], r["rows"], r["error"] is None) for r in observer.finished_requests] == [
        ("grpc", "Predict", "m", 2, True),
        ("grpc", "Predict", "", 0, False),
    ]


def test_metadata(call: Call) -> None:
    request = message("GetModelMetadataRequest")
    request.metadata_field.append("signature_def")
    response = call(f"{PREDICTION}/GetModelMetadata", request)
    assert (response.model_spec.name, response.model_spec.version.value) == ("m", 3)
    signature_map = message_class("tensorflow.serving.SignatureDefMap")
    signatures = signature_map.FromString(response.metadata["signature_def"].value).signature_def
    assert signatures.keys() == {"lookup", "regress", "serving_default"}
    assert signatures["serving_default"].inputs["x"].name == "x:0"


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (None, ["signature_def"], "Missing ModelSpec"),
        ("m", [], "GetModelMetadataRequest must specify at least one metadata_field"),
        ("m", ["signature_def", "x"], "Metadata field x is not supported"),
        ("n", ["signature_def"], "Servable not found for request: Latest(n)"),
    ],
)
def test_errors_of_metadata(call: Call, name: str | None, fields: list[str], text: str) -> None:
    request = message("GetModelMetadataRequest", model=name)
    request.metadata_field.extend(fields)
    with pytest.raises(ServiceError) as caught:
        call(f"{PREDICTION}/GetModelMetadata", request)
    assert caught.value.message == text


def test_status(call: Call) -> None:
    for request in (message("GetModelStatusRequest"), message("GetModelStatusRequest", version=3)):
        (status,) = call(f"{MODEL}/GetModelStatus", request).model_version_status
        assert (status.version, status.state, status.status.error_code) == (3, 30, 0)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (message("GetModelStatusRequest", model=None), "Missing ModelSpec"),
        (message("GetModelStatusRequest", model="n"), "Could not find any versions of model n"),
        (message("GetModelStatusRequest", version=9), "Could not find version 9 of model m"),
    ],
)
def test_errors_of_status(call: Call, request_: Any, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        call(f"{MODEL}/GetModelStatus", request_)
    assert caught.value.message == text


def test_every_method_of_the_api_is_served_or_refused_on_purpose(engine: Engine) -> None:
    in_core = {f"{PREDICTION}/{name}" for name in ("Classify", "Regress", "MultiInference")}
    known = in_core | service_methods(engine).keys() | SERVING_UNIMPLEMENTED.keys()
    pool = message_class("tensorflow.serving.PredictRequest").DESCRIPTOR.file.pool
    for service in (PREDICTION, MODEL):
        for method in pool.FindServiceByName(service[1:]).methods_by_name:
            assert f"{service}/{method}" in known


@pytest.fixture
def infer(engine: Engine) -> Call:
    """Returns a function that calls a method with a message's fields and returns the answer's message."""
    methods = open_inference_methods(engine)

    def infer(method: str, deadline_s: float | None = None, **fields: Any) -> Any:
        request = message_class(f"inference.{method}Request")(**fields)
        answer = methods[f"/{INFERENCE_SERVICE}/{method}"](request.SerializeToString(), deadline_s)
        return message_class(f"inference.{method}Response").FromString(answer)

    return infer


def test_inference_metadata_is_of_the_only_signature(infer: Call, registry: Registry) -> None:
    registry.add_model("lookups")
    registry.start("lookups", 1)
    registry.publish(Servable("lookups", 1, {"lookup": specs()["lookup"]}, {"lookup": FakeBackend()}))
    assert len(infer("ModelMetadata", name="lookups").inputs) == 3


def test_health_and_metadata(infer: Call, registry: Registry) -> None:
    assert infer("ServerLive").live
    assert infer("ServerReady").ready
    assert infer("ModelReady", name="m").ready and infer("ModelReady", name="m", version="3").ready
    for absent in ({"name": "m", "version": "9"}, {"name": "m", "version": "label"}, {"name": "nobody"}):
        assert not infer("ModelReady", **absent).ready
    assert infer("ServerMetadata").name == "embedding-server"
    metadata = infer("ModelMetadata", name="m")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["3"], "tensorflow_savedmodel")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("y", "FP32", [-1]),
        ("z", "INT64", [-1]),
    ]
    config = infer("ModelConfig", name="m", version="3").config
    assert (config.name, config.max_batch_size, config.input[0].name) == ("m", 0, "x")
    with pytest.raises(VersionNotFound):
        infer("ModelMetadata", name="m", version="9")

    registry.add_model("late")
    assert not infer("ServerReady").ready
    assert not infer("ModelReady", name="late").ready
    assert [(m.name, m.version, m.state) for m in infer("RepositoryIndex").models] == [
        ("late", "", "UNAVAILABLE"),
        ("m", "3", "READY"),
    ]
    assert [m.name for m in infer("RepositoryIndex", ready=True).models] == ["m"]


def test_every_method_is_served_or_says_that_it_is_not(engine: Engine) -> None:
    from tritonclient.grpc import service_pb2

    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    known = {f"/{INFERENCE_SERVICE}/{method.name}" for method in service.methods}
    # The core answers ModelInfer itself and forwards the others.
    served = {*open_inference_methods(engine), f"/{INFERENCE_SERVICE}/ModelInfer"}
    assert served | set(INFERENCE_UNIMPLEMENTED) == known
    assert not served & set(INFERENCE_UNIMPLEMENTED)
    described = message_class("inference.ModelInferRequest").DESCRIPTOR.file.services_by_name["GRPCInferenceService"]
    assert {f"/{INFERENCE_SERVICE}/{method.name}" for method in described.methods} == served


def text(value: str) -> Any:
    """Returns a scalar string."""
    return np.array(value.encode(), object)


def search(engine: Engine, *, model: str = "toy", output_filter: tuple[str, ...] = (), **inputs: Any) -> Any:
    """Sends a search; returns the answer."""
    request = predict_request(inputs, model=model, signature_name="neighbors", output_filter=output_filter)
    data = service_methods(engine)[PREDICT](request.SerializeToString(), None)
    return message_class("tensorflow.serving.PredictResponse").FromString(data)


def arrays(answer: Any) -> dict[str, list[Any]]:
    """Returns a response's outputs by name, as lists."""
    return {name: decode_tensor(name, tensor, 100).tolist() for name, tensor in answer.outputs.items()}


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3.
def test_neighbors_of_a_key_by_hand(toy_engine: Engine) -> None:
    answer = search(
        toy_engine,
        table=text("tag"),
        keys=np.array([b"blue"], object),
        k=np.array(2),
        metric=text("l2"),
        exclude_ids=np.array([2]),
    )
    assert arrays(answer) == {"ids": [[1, 0]], "scores": [[68.0, 90.0]], "keys": [[b"red", b""]]}
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("toy", 1, "neighbors")


def test_missing_neighbors_are_filled_up(toy_engine: Engine) -> None:
    inputs = {"table": text("tag"), "vectors": np.ones((1, 3), np.float32), "filter_ids": np.array([3])}
    found = arrays(search(toy_engine, output_filter=("ids", "scores"), **inputs))
    assert (
        found["ids"] == [[3, -1, -1, -1]] and found["scores"][0][0] == 13.0 and np.isnan(found["scores"][0][1:]).all()
    )


@pytest.mark.parametrize(
    ("inputs", "error", "told"),
    [
        ({"ids": np.array([1])}, InputMismatch, 'input "table" is missing'),
        ({"table": text("film"), "ids": np.array([1])}, TableNotFound, "Tables: tag, user."),
        ({"model": "nobody", "table": text("tag"), "ids": np.array([1])}, ModelNotFound, "Latest(nobody)"),
    ],
)
def test_errors(
    toy_engine: Engine, observer: RecordingObserver, inputs: Any, error: type[ServiceError], told: str
) -> None:
    with pytest.raises(error) as caught:
        search(toy_engine, **inputs)
    assert told in caught.value.message
    (counted,) = observer.finished_requests
    assert (counted["api"], counted["method"], counted["error"].code) == ("grpc", "Predict", error.code)


def test_a_models_own_signature_of_that_name_comes_first(toy_engine: Engine) -> None:
    (holder,) = toy_engine._registry.holders()
    own = replace(holder.servable.signatures["lookup"], name="neighbors")
    signatures = {**holder.servable.signatures, "neighbors": own}
    holder.servable = replace(holder.servable, signatures=signatures)
    assert not toy_engine.searches_by_signature(ModelRef("toy"))
    with pytest.raises(Unimplemented, match='^Signature "neighbors" of model "toy" can not be run'):
        search(toy_engine, table=text("tag"), ids=np.array([1]))
