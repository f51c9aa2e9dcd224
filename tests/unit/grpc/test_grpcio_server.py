"""Calls the methods on real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.artifact.protos import message_class
from service.control.engine import Engine
from service.grpc import health
from service.versions.registry import Registry
from tests.grpc_servers import LocalServer, started
from tests.unit.grpc.test_methods import PREDICTION, found, search_request
from tests.unit.http.conftest import NumpyTable

MAX_MESSAGE_BYTES = 100_000


@pytest.fixture
def make_server(engine: Engine) -> Callable[..., LocalServer]:
    """Returns a function that makes gRPC servers which have not been started."""
    return partial(LocalServer, engine, max_message_bytes=MAX_MESSAGE_BYTES)


@pytest.fixture
def server(make_server: Callable[..., LocalServer]) -> Iterator[LocalServer]:
    """Makes a server, and stops it after the test."""
    server = make_server()
    yield server
    server.stop(0)


@pytest.fixture
def channel(server: LocalServer) -> Iterator[grpc.Channel]:
    """Starts the server, and opens a channel to it."""
    with started(server) as channel:
        yield channel


Search = Callable[..., Any]


@pytest.fixture
def search(channel: grpc.Channel) -> Search:
    """Returns a function that calls Predict with bytes or a message of a search, and returns the response."""
    method = channel.unary_unary(f"{PREDICTION}/Predict")

    def search(request: Any, **options: Any) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return message_class("tensorflow.serving.PredictResponse").FromString(method(data, **options))

    return search


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Returns the status code and the text with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()  # type: ignore[attr-defined]


def test_a_request_is_answered(search: Search) -> None:
    assert found(search(search_request(0, 3))) == [3, 2]


def test_errors_have_their_status_and_text(search: Search) -> None:
    assert refused(lambda: search(search_request(0, model="n"))) == (
        grpc.StatusCode.NOT_FOUND,
        "Servable not found for request: Latest(n); models: m",
    )
    assert refused(lambda: search(b"\xff"))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_long_texts_are_cut(search: Search) -> None:
    code, text = refused(lambda: search(search_request(0, model="é" * 2000)))
    assert code is grpc.StatusCode.NOT_FOUND
    assert text.endswith("é...TRUNCATED") and len(text.encode()) <= 1024 + len("...TRUNCATED")


@pytest.mark.parametrize("failure", [ZeroDivisionError("secret"), pytest.param(None, id="bug of ours")])
def test_faults_are_logged_once_and_hidden(
    search: Search,
    table: NumpyTable,
    failure: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table.failure = failure
    if failure is None:
        monkeypatch.setattr(Engine, "neighbors", lambda *_, **__: 1 / 0)
    code, text = refused(lambda: search(search_request(0)))
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert code is grpc.StatusCode.INTERNAL and "secret" not in text
    assert record.exc_info and text.endswith(record.request_id)  # type: ignore[attr-defined]


def test_answers_may_be_larger_than_requests(make_server: Callable[..., LocalServer]) -> None:
    limit = 1000
    request = search_request(*[0] * 256, k=4).SerializeToString()
    server = make_server(max_message_bytes=limit)
    with started(server) as channel:
        assert len(channel.unary_unary(f"{PREDICTION}/Predict")(request)) > 3 * limit > 3 * len(request)
    server.stop(0)


def test_messages_over_the_limit_are_refused(search: Search) -> None:
    request = search_request(*[0] * MAX_MESSAGE_BYTES)
    assert refused(lambda: search(request))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/tensorflow.serving.SessionService/SessionRun", "SessionRun is not implemented; call Predict."),
        ("/nothing/Nothing", ""),
    ],
)
def test_what_is_not_served_is_unimplemented(channel: grpc.Channel, path: str, text: str) -> None:
    code, details = refused(lambda: channel.unary_unary(path)(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert details.startswith(text)


def test_a_deadline_ends_the_call_and_what_waited_is_not_run(
    search: Search, table: NumpyTable, server: LocalServer, channel: grpc.Channel
) -> None:
    table.gate = threading.Event()
    request = search_request(0).SerializeToString()
    method = channel.unary_unary(f"{PREDICTION}/Predict")
    # Two calls occupy the server's two workers; a third waits for a worker until its deadline.
    held = [method.future(request, timeout=30) for _ in range(2)]
    for _ in held:
        table.entered.acquire()
    assert refused(lambda: search(request, timeout=0.1))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    # The server learns of the deadline by its own clock.
    time.sleep(0.2)
    table.gate.set()
    assert all(call.result() for call in held)
    server.stop(5)
    assert table.num_searches == 2


def test_stop_waits_for_what_runs_and_refuses_the_rest(
    table: NumpyTable, server: LocalServer, channel: grpc.Channel
) -> None:
    table.gate = threading.Event()
    method = channel.unary_unary(f"{PREDICTION}/Predict")
    running = method.future(search_request(0).SerializeToString())
    table.entered.acquire()
    stopping = threading.Thread(target=server.stop, args=(20,))
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive()
    table.gate.set()
    assert running.result()
    stopping.join()
    assert refused(lambda: method(b"", timeout=5))[0] is grpc.StatusCode.UNAVAILABLE


def test_an_address_in_use_is_an_error_that_names_it(make_server: Callable[..., LocalServer]) -> None:
    server = make_server(name="tests-in-use")
    server.start()
    other = make_server(name="tests-in-use")
    with pytest.raises(OSError, match="gRPC can not listen on unix-abstract:tests-in-use"):
        other.start()
    other.stop(0)
    server.stop(0)


SERVING, NOT_SERVING = 1, 2
PREDICTION_NAME = PREDICTION.removeprefix("/")


def test_health_follows_readiness(
    server: LocalServer, channel: grpc.Channel, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = health_pb2_grpc.HealthStub(channel)

    def check(service: str) -> int:
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service)).status)

    assert [check(name) for name in ("", PREDICTION_NAME, "m")] == [SERVING] * 3
    assert refused(lambda: check("nobody"))[0] is grpc.StatusCode.NOT_FOUND
    registry.add_model("late")
    server.set_serving(False)
    assert [check(name) for name in ("", PREDICTION_NAME, "m", "late")] == [
        NOT_SERVING,
        NOT_SERVING,
        SERVING,
        NOT_SERVING,
    ]
    registry.configure({"late": {}})
    server.set_serving(False)
    assert check("m") == NOT_SERVING, "it is not served any more"
    monkeypatch.setattr(health, "_MOST_GONE", 2)
    for name in "abc":
        registry.add_model(name)
        registry.configure({name: {}})
        server.set_serving(False)
    assert [check(name) for name in ("a", "b", "c")] == [NOT_SERVING] * 3
    assert refused(lambda: check("m"))[0] is grpc.StatusCode.NOT_FOUND, "it is long gone"


def test_a_draining_server_has_no_healthy_model(server: LocalServer, channel: grpc.Channel, registry: Registry) -> None:
    registry.drain()
    server.set_serving(False)
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service="m")).status == NOT_SERVING


def test_watchers_hear_of_changes_and_hold_no_worker(
    server: LocalServer, channel: grpc.Channel, search: Search
) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(4)]
    assert [next(watch).status for watch in watches] == [SERVING] * 4
    assert search(search_request(0))
    server.set_serving(False)
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 4
    for watch in watches:
        watch.cancel()


def test_reflection_lists_and_describes_the_services(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=PREDICTION_NAME),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
    ]
    listed, described, health = stub.ServerReflectionInfo(iter(requests))
    assert [service.name for service in listed.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "tensorflow.serving.ModelService",
        "tensorflow.serving.PredictionService",
    ]
    assert described.file_descriptor_response.file_descriptor_proto
    assert health.file_descriptor_response.file_descriptor_proto


@pytest.mark.tf
def test_stock_stubs_work(channel: grpc.Channel) -> None:
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

    prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest.FromString(search_request(0, 3).SerializeToString())
    response = prediction.Predict(request)
    assert list(response.outputs["ids"].int64_val) == [3, 2]
    assert response.model_spec.version.value == 3

    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert prediction.GetModelMetadata(metadata).metadata["signature_def"].Unpack(signatures)
    assert "lookup" in signatures.signature_def

    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    (version,) = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status).model_version_status
    assert version.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE


def test_a_watcher_does_not_hold_up_the_stop(server: LocalServer, channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == SERVING
    # The grace of an hour does not count for a health watch: the server ends it at once.
    server.stop(3600)
    assert [response.status for response in watch] == [NOT_SERVING]


def test_watchers_that_leave_while_the_status_changes_lock_nothing(server: LocalServer, channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for round_number in range(30):
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(8)]
        for watch in watches:
            next(watch)
        for watch in watches:
            server.set_serving(bool(round_number % 2))
            watch.cancel()
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=20)


def test_probes_are_answered_while_all_workers_are_busy(channel: grpc.Channel, table: NumpyTable) -> None:
    table.gate = threading.Event()
    method = channel.unary_unary(f"{PREDICTION}/Predict")
    held = [method.future(search_request(0).SerializeToString()) for _ in range(2)]
    for _ in held:
        table.entered.acquire()
    assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20).status == SERVING
    table.gate.set()
    assert all(call.result() for call in held)


def test_a_service_that_nobody_knows_can_be_watched(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
