"""The gRPC methods of the Open Inference Protocol take and return bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.artifact.protos import message_class
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.errors import VersionNotFound
from service.grpc.methods import INFERENCE_SERVICE, INFERENCE_UNIMPLEMENTED, open_inference_methods
from tests.unit.engine.fakes import FakeBackend
from tests.unit.http.conftest import specs

Call = Callable[..., Any]


@pytest.fixture
def call(engine: Engine) -> Call:
    """Returns a function that calls a method with a message's fields and returns the answer's message."""
    methods = open_inference_methods(engine)

    def call(method: str, deadline_s: float | None = None, **fields: Any) -> Any:
        request = message_class(f"inference.{method}Request")(**fields)
        answer = methods[f"/{INFERENCE_SERVICE}/{method}"](request.SerializeToString(), deadline_s)
        return message_class(f"inference.{method}Response").FromString(answer)

    return call


def test_metadata_is_of_the_only_signature(call: Call, registry: Registry) -> None:
    registry.add_model("lookups")
    registry.start("lookups", 1)
    registry.publish(Servable("lookups", 1, {"lookup": specs()["lookup"]}, {"lookup": FakeBackend()}))
    assert len(call("ModelMetadata", name="lookups").inputs) == 3


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
    # The core answers ModelInfer itself and forwards the others.
    served = {*open_inference_methods(engine), f"/{INFERENCE_SERVICE}/ModelInfer"}
    assert served | set(INFERENCE_UNIMPLEMENTED) == known
    assert not served & set(INFERENCE_UNIMPLEMENTED)
    described = message_class("inference.ModelInferRequest").DESCRIPTOR.file.services_by_name["GRPCInferenceService"]
    assert {f"/{INFERENCE_SERVICE}/{method.name}" for method in described.methods} == served
