"""The gRPC methods of the Open Inference Protocol take and return bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.errors import DeadlineExceeded, InvalidRequest, ServiceError, VersionNotFound
from service.grpc.inference_v2_methods import INFERENCE_SERVICE, UNIMPLEMENTED, open_inference_methods
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import NumpyModel
from tests.unit.http.test_oip_routes import add_lookups

Call = Callable[..., Any]
X = {"name": "x", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1, 2]}}


@pytest.fixture
def call(engine: Engine) -> Call:
    """Returns a function that calls a method with a message's fields and returns the answer's message."""
    methods = open_inference_methods(engine)

    def call(method: str, deadline_s: float | None = None, **fields: Any) -> Any:
        request = message_class(f"inference.{method}Request")(**fields)
        answer = methods[f"/{INFERENCE_SERVICE}/{method}"](request.SerializeToString(), deadline_s)
        return message_class(f"inference.{method}Response").FromString(answer)

    return call


def outputs(response: Any) -> dict[str, list[Any]]:
    """Returns the outputs in an inference's response, by name, as lists."""
    dtypes = {"FP32": "<f4", "INT64": "<i8"}
    return {
        output.name: np.frombuffer(raw, dtypes[output.datatype]).reshape(output.shape).tolist()
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def test_an_inference(call: Call) -> None:
    response = call("ModelInfer", model_name="m", id="42", inputs=[X], outputs=[{"name": "y"}])
    assert outputs(response) == {"y": [3.0, 5.0]}
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "42")
    assert response.parameters["signature_name"].string_param == "serving_default"


def test_a_signature_chosen_by_parameter_or_because_there_is_no_other(
    call: Call, registry: Registry, model: NumpyModel
) -> None:
    raw = {
        "inputs": [{"name": "user", "datatype": "INT64", "shape": [2]}],
        "raw_input_contents": [np.array([1, 0]).tobytes()],
    }
    chosen = call("ModelInfer", model_name="m", parameters={"signature_name": {"string_param": "lookup"}}, **raw)
    assert outputs(chosen) == {"user": [[2.0, 3.0], [0.0, 1.0]]}
    add_lookups(registry, model)
    assert outputs(call("ModelInfer", model_name="lookups", **raw)) == outputs(chosen)
    assert len(call("ModelMetadata", name="lookups").inputs) == 3


def test_what_went_wrong_is_counted(call: Call, observer: RecordingObserver) -> None:
    with pytest.raises(VersionNotFound):
        call("ModelInfer", model_name="m", model_version="9", inputs=[X])
    with pytest.raises(InvalidRequest):
        call("ModelInfer", inputs=[X])
    with pytest.raises(ServiceError):
        call("ModelInfer", model_name="m", inputs=[X | {"shape": [3]}])
    codes = [(request["api"], request["error"].code, request["signature"]) for request in observer.finished_requests]
    assert codes == [
        ("grpc", "NOT_FOUND", ""),
        ("grpc", "INVALID_ARGUMENT", ""),
        ("grpc", "INVALID_ARGUMENT", "serving_default"),
    ]


def test_the_deadline_is_kept(call: Call, engine: Engine) -> None:
    with pytest.raises(DeadlineExceeded):
        call("ModelInfer", engine.clock() - 1, model_name="m", inputs=[X])


def test_health_and_metadata(call: Call, registry: Registry) -> None:
    assert call("ServerLive").live
    assert call("ServerReady").ready
    assert call("ModelReady", name="m").ready and call("ModelReady", name="m", version="3").ready
    for absent in ({"name": "m", "version": "9"}, {"name": "m", "version": "label"}, {"name": "nobody"}):
        assert not call("ModelReady", **absent).ready
    assert call("ServerMetadata").name == "embedding-server"
    metadata = call("ModelMetadata", name="m")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["3"], "tensorflow_savedmodel")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("y", "FP32", [-1]),
        ("z", "INT64", [-1]),
    ]
    config = call("ModelConfig", name="m", version="3").config
    assert (config.name, config.max_batch_size, config.input[0].name) == ("m", 0, "x")
    with pytest.raises(VersionNotFound):
        call("ModelMetadata", name="m", version="9")

    registry.add_model("late")
    assert not call("ServerReady").ready
    assert not call("ModelReady", name="late").ready
    assert [(m.name, m.version, m.state) for m in call("RepositoryIndex").models] == [
        ("late", "", "UNAVAILABLE"),
        ("m", "3", "READY"),
    ]
    assert [m.name for m in call("RepositoryIndex", ready=True).models] == ["m"]


def test_every_method_is_served_or_says_that_it_is_not(engine: Engine) -> None:
    from tritonclient.grpc import service_pb2

    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    known = {f"/{INFERENCE_SERVICE}/{method.name}" for method in service.methods}
    assert set(open_inference_methods(engine)) | set(UNIMPLEMENTED) == known
    assert not set(open_inference_methods(engine)) & set(UNIMPLEMENTED)
    described = message_class("inference.ModelInferRequest").DESCRIPTOR.file.services_by_name["GRPCInferenceService"]
    assert {f"/{INFERENCE_SERVICE}/{method.name}" for method in described.methods} == set(
        open_inference_methods(engine)
    )
