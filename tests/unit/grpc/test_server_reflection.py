"""Open reflection streams cost no worker and hold nothing up, and a request that can not be read is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.control.engine import Engine
from tests.grpc_servers import LocalServer, started
from tests.unit.grpc.test_methods import PREDICTION, search_request

LIST = reflection_pb2.ServerReflectionRequest(list_services="")
V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
MALFORMED = b"\x0a\xff"
NUM_WORKERS = 2


@pytest.fixture
def server(engine: Engine) -> Iterator[LocalServer]:
    """A gRPC server with NUM_WORKERS worker threads."""
    server = LocalServer(engine, max_workers=NUM_WORKERS)
    yield server
    server.stop(0)


@pytest.fixture
def channel(server: LocalServer) -> Iterator[grpc.Channel]:
    """A channel to the started server."""
    with started(server) as channel:
        yield channel


class HeldStream:
    """A stream whose client has asked once and then waits."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._is_over = threading.Event()
        self.answers: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(self._requests())
        assert next(self.answers).list_services_response.service

    def _requests(self) -> Iterator[Any]:
        yield LIST
        self._is_over.wait()

    def end(self) -> None:
        """Ends the stream's requests."""
        self._is_over.set()


def test_streams_that_are_kept_open_hold_no_worker(channel: grpc.Channel) -> None:
    held = [HeldStream(channel) for _ in range(NUM_WORKERS)]
    assert channel.unary_unary(f"{PREDICTION}/Predict")(search_request(0).SerializeToString(), timeout=20)
    for stream in held:
        stream.end()
        assert list(stream.answers) == []


def test_a_stream_that_is_kept_open_does_not_hold_up_the_stop(server: LocalServer, channel: grpc.Channel) -> None:
    stream = HeldStream(channel)
    # The grace of an hour does not count for this stream: the server ends it at once.
    server.stop(3600)
    with pytest.raises(grpc.RpcError):
        next(stream.answers)
    stream.end()


def test_reflection_answers_under_its_new_name_too(channel: grpc.Channel) -> None:
    call = channel.stream_stream(V1)
    (data,) = call(iter([LIST.SerializeToString()]), timeout=20)
    answer = reflection_pb2.ServerReflectionResponse.FromString(data)
    assert "tensorflow.serving.PredictionService" in [s.name for s in answer.list_services_response.service]


@pytest.mark.parametrize(
    "path", ["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", V1, "/grpc.health.v1.Health/Watch"]
)
def test_a_stream_that_sends_what_can_not_be_read_is_refused(channel: grpc.Channel, path: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(channel.stream_stream(path)(iter([MALFORMED]), timeout=20))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details().startswith("The request can not be read: ")


def test_a_probe_that_can_not_be_read_is_refused_without_a_traceback(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    call = channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as raised:
        call(MALFORMED, timeout=20)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caplog.records == []
    assert health_pb2.HealthCheckResponse.FromString(call(b"", timeout=20)).status == 1


def test_the_file_of_a_method_is_found_by_the_name_of_the_method(channel: grpc.Channel) -> None:
    def found(symbol: str) -> Any:
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=20)
        return answer

    of_method = found("tensorflow.serving.PredictionService.Predict")
    assert list(of_method.file_descriptor_response.file_descriptor_proto)
    assert of_method.file_descriptor_response == found("tensorflow.serving.PredictionService").file_descriptor_response
    for symbol in ("tensorflow.serving.PredictionService.Nothing", "tensorflow.serving.Nothing.Predict", "nothing"):
        assert found(symbol).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
