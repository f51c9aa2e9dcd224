"""The methods take and return bytes: TensorFlow Serving's answers, and its texts for errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor
from service.engine.bound import NOT_HERE
from service.engine.engine import Engine
from service.errors import DeadlineExceeded, ServiceError
from service.grpc.methods import PREDICTION_SERVICE, UNIMPLEMENTED, service_methods
from service.types import Array
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import NumpyModel

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


def regress_request(*names: str, **spec: Any) -> Any:
    """Builds a RegressionRequest with an example for each name, which has a feature of this name unless it is ""."""
    request = message("RegressionRequest", **({"signature_name": "regress"} | spec))
    for name in names:
        features = request.input.example_list.examples.add().features
        features.SetInParent()
        if name:
            features.feature[name].SetInParent()
    return request


def lengths(request: Any) -> list[float]:
    """Returns what the model answers for a RegressionRequest: the number of bytes of each example."""
    return [example.ByteSize() for example in request.input.example_list.examples]


@pytest.fixture
def call(engine: Engine) -> Call:
    """Returns a function that calls a gRPC method with a message and returns the answer as a message."""
    methods = service_methods(engine)

    def call(path: str, request: Any, deadline_s: float | None = None) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        name = path.rpartition("/")[2]
        name = {"Classify": "Classification", "Regress": "Regression"}.get(name, name)
        return message_class(f"tensorflow.serving.{name}Response").FromString(methods[path](data, deadline_s))

    return call


def values(response: Any) -> list[float]:
    """Returns the values of a RegressionResponse."""
    return [regression.value for regression in response.result.regressions]


X = {"x": vector([1, 2.5], "float32")}


def test_regress_echoes_what_it_resolved(call: Call) -> None:
    request = regress_request("a", "longer")
    response = call(f"{PREDICTION}/Regress", request)
    assert values(response) == lengths(request)
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "regress")


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (message("PredictRequest", model=None), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (message("PredictRequest", model=""), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (predict_request(X), "UNIMPLEMENTED", NOT_HERE),
        (b"\xff\xff", "INVALID_ARGUMENT", "The request is not a valid tensorflow.serving.PredictRequest message."),
    ],
)
def test_a_predict_that_the_core_forwards_is_refused(call: Call, request_: Any, code: str, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        call(f"{PREDICTION}/Predict", request_)
    assert caught.value.code == code
    assert caught.value.message.startswith(text)


def test_work_that_is_late_is_not_begun(call: Call, engine: Engine, model: NumpyModel) -> None:
    with pytest.raises(DeadlineExceeded):
        call(f"{PREDICTION}/Regress", regress_request("a"), engine.clock() - 1)
    assert not model.threads


def test_requests_are_counted_also_where_they_never_reach_a_model(call: Call, observer: RecordingObserver) -> None:
    call(f"{PREDICTION}/Regress", regress_request("a", "b"))
    with pytest.raises(ServiceError):
        call(f"{PREDICTION}/Regress", b"\xff")
    assert [(r["api"], r["model"], r["rows"], r["error"] is None) for r in observer.finished_requests] == [
        ("grpc", "m", 2, True),
        ("grpc", "", 0, False),
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
    known = service_methods(engine).keys() | UNIMPLEMENTED.keys()
    pool = message_class("tensorflow.serving.PredictRequest").DESCRIPTOR.file.pool
    for service in (PREDICTION, MODEL):
        for method in pool.FindServiceByName(service[1:]).methods_by_name:
            assert f"{service}/{method}" in known


def test_inference_that_can_not_be_bound_or_run_is_counted(call: Call, observer: RecordingObserver) -> None:
    request = message("MultiInferenceRequest", model=None)
    request.tasks.add(method_name="tensorflow/serving/regress").model_spec.name = "m"
    for method, sent, text in (
        ("Classify", b"\xff", "tensorflow.serving.ClassificationRequest"),
        ("MultiInference", b"\xff", "tensorflow.serving.MultiInferenceRequest"),
        ("Regress", message("RegressionRequest", signature_name="x"), "No signature was found with the name: x"),
        ("Regress", message("RegressionRequest"), "Expected one output Tensor."),
        ("MultiInference", request, "Expected one output Tensor."),
    ):
        with pytest.raises(ServiceError) as caught:
            call(f"{PREDICTION}/{method}", sent)
        assert text in caught.value.message
    assert [(r["model"], r["error"].code) for r in observer.finished_requests] == [
        ("", "INVALID_ARGUMENT"),
        ("", "INVALID_ARGUMENT"),
        *[("m", "INVALID_ARGUMENT")] * 3,
    ]


def test_a_lookup_takes_no_examples(call: Call) -> None:
    request = message("ClassificationRequest", signature_name="lookup")
    request.input.example_list.examples.add()
    with pytest.raises(ServiceError) as caught:
        call(f"{PREDICTION}/Classify", request)
    assert caught.value.message == "Expected one input Tensor."


# A serialized message with model_spec { name: "m" }, and a MultiInferenceRequest whose task has the same model_spec.
SPEC, TASK = b"\n\x03\n\x01m", b"\n\x05\n\x03\n\x01m"


@pytest.mark.parametrize("data", [b"\xff", SPEC, TASK])
def test_every_method_that_runs_a_signature_counts_under_its_name(
    engine: Engine, observer: RecordingObserver, data: bytes
) -> None:
    for path, handler in service_methods(engine).items():
        _, service, name = path.split("/")
        if service == PREDICTION_SERVICE and name != "GetModelMetadata":
            with pytest.raises(ServiceError):
                handler(data, None)
            assert {request["method"] for request in observer.finished_requests} == {name}
            observer.finished_requests.clear()
