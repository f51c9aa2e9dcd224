"""The methods take and return bytes: TensorFlow Serving's answers, and its texts for errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor, encode_tensor
from service.engine.engine import Engine
from service.errors import DeadlineExceeded, ServiceError
from service.grpc.methods import SERVING_UNIMPLEMENTED, service_methods
from service.types import Array
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import NumpyTable

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
