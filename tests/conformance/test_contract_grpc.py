"""Tests the parts of TensorFlow Serving's contract that only gRPC has: services, limits, compression, deadlines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.artifact.protos import message_class
from tests.conformance.contract_calls import fill_tensor
from tests.integration.process import ServerProcess, server_of

# Number of bytes of predict_request() with 60,000 values as content.
LONGEST = 240_033
PREDICT = "/tensorflow.serving.PredictionService/Predict"
SERVICES = {
    "tensorflow.serving.PredictionService": ["Classify", "GetModelMetadata", "MultiInference", "Predict", "Regress"],
    "tensorflow.serving.ModelService": ["GetModelStatus", "HandleReloadConfigRequest"],
}

pytestmark = pytest.mark.tf


def predict_request(values: Any, *, as_content: bool = False) -> bytes:
    """Returns a serialized PredictRequest to TensorFlow Serving's model half plus two."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "half"
    fill_tensor(request.inputs["x"], values, "float", as_content=as_content)
    return bytes(request.SerializeToString())


def output(data: bytes) -> Any:
    """Returns output "y" of a serialized PredictResponse, as a TensorProto."""
    return message_class("tensorflow.serving.PredictResponse").FromString(data).outputs["y"]


def test_the_services_and_their_methods(contract_channel: grpc.Channel) -> None:
    from google.protobuf import descriptor_pb2

    stub = reflection_pb2_grpc.ServerReflectionStub(contract_channel)
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in SERVICES]
    listed, *described = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services=""), *asked])
    )
    assert SERVICES.keys() <= {service.name for service in listed.list_services_response.service}
    for answer, (name, methods) in zip(described, SERVICES.items(), strict=True):
        files = map(
            descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
        )
        (service,) = [s for file in files for s in file.service if name.endswith(f".{s.name}")]
        assert sorted(method.name for method in service.method) == methods
        for method in methods:
            with pytest.raises(grpc.RpcError) as caught:
                contract_channel.unary_unary(f"/{name}/{method}")(b"\xff\xff", timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, "these bytes are no message"


def test_health_is_always_there(contract_channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(contract_channel)
    for name in ("", *SERVICES, "PredictionService", "ModelService", "half"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == 1


def test_the_session_service_is_not_implemented(contract_channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        contract_channel.unary_unary("/tensorflow.serving.SessionService/SessionRun")(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("length", "is_cut"), [(1024, False), (1025, True)])
def test_details_are_cut_at_1024_bytes(contract_channel: grpc.Channel, length: int, is_cut: bool) -> None:
    start, end = "Servable not found for request: Latest(", ")"
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "m" * (length - len(start + end))
    with pytest.raises(grpc.RpcError) as caught:
        contract_channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=60)
    text = f"{start}{request.model_spec.name}{end}"
    assert caught.value.details() == (text[:1024] + "...TRUNCATED" if is_cut else text)


@pytest.fixture(scope="module")
def flagged(contract_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server with flags of gRPC; its longest message has LONGEST bytes."""
    flags = {"max_request_bytes": LONGEST, "grpc_socket_path": tmp_path_factory.mktemp("s") / "grpc"}
    models, folder = {"half": contract_models / "half"}, tmp_path_factory.mktemp("flagged")
    with server_of(models, folder, "--enable_serialization_as_tensor_content", **flags) as server:
        yield server


def test_answers_in_tensor_content_by_flag_and_by_request(flagged: ServerProcess) -> None:
    by_flag = flagged.channel.unary_unary(PREDICT)
    answer = output(by_flag(predict_request([2.0]), timeout=60))
    assert answer.tensor_content == b"\x00\x00\x40\x40" and not answer.float_val
    answer = output(by_flag(predict_request([2.0]), timeout=60, metadata=(("x-tensor-encoding", "values"),)))
    assert list(answer.float_val) == [3.0] and not answer.tensor_content


def test_messages_up_to_the_limit_that_is_set(flagged: ServerProcess) -> None:
    values = [2.0] * 60_000
    request = predict_request(values, as_content=True)
    assert len(request) == LONGEST
    call = flagged.channel.unary_unary(PREDICT)
    assert len(output(call(request, timeout=60)).tensor_content) == 4 * len(values)
    with pytest.raises(grpc.RpcError) as caught:
        call(predict_request([*values, 2.0], as_content=True), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_unix_socket_beside_the_port(flagged: ServerProcess) -> None:
    path = flagged.wait_for_log("settings")["grpc_socket_path"]
    with grpc.insecure_channel(f"unix:{path}") as local:
        for each in (flagged.channel, local):
            answer = output(each.unary_unary(PREDICT)(predict_request([2.0]), timeout=60))
            assert answer.tensor_content == b"\x00\x00\x40\x40"


def test_a_deadline_that_has_passed(contract_channel: grpc.Channel) -> None:
    # The request is so large that the server can not answer it before the client checks its deadline.
    with pytest.raises(grpc.RpcError) as caught:
        contract_channel.unary_unary(PREDICT)(predict_request([2.0] * 200_000), timeout=0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_cancelled_call_ends_nothing_else(contract_channel: grpc.Channel) -> None:
    call = contract_channel.unary_unary(PREDICT)
    over = threading.Event()
    waiting = call.future(predict_request([2.0]), timeout=60)
    waiting.add_done_callback(lambda _: over.set())
    waiting.cancel()
    assert over.wait(60) and waiting.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK)
    assert list(output(call(predict_request([2.0]), timeout=60)).float_val) == [3.0]
