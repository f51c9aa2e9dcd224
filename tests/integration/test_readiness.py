"""Readiness of each model and wire, and the end: requests in flight are answered, and new ones not taken."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.artifact.protos import message_class
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until, write_models
from tests.integration.steady_clients import SteadyClients
from tests.toy_model import write_toy_model

SERVICES = ("", "tensorflow.serving.PredictionService", "inference.GRPCInferenceService")


class Seen(NamedTuple):
    """Readiness on each wire: of the server, and of the models "a" and "b"."""

    server: bool
    a: bool
    b: bool


def inference(server: ServerProcess, method: str, **fields: str) -> bool:
    """Calls a gRPC method of the Open Inference Protocol such as ServerReady; returns the answer's `ready`."""
    request = message_class(f"inference.{method}Request")(**fields).SerializeToString()
    answer = server.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(request, timeout=60)
    return bool(message_class(f"inference.{method}Response").FromString(answer).ready)


def readiness(server: ServerProcess) -> dict[str, Seen]:
    """Asks every wire."""
    stub = health_pb2_grpc.HealthStub(server.channel)

    def is_ok(path: str) -> bool:
        return server.http.get(path).status_code == 200

    def is_serving(service: str) -> bool:
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status) == 1

    families = read_exposition(server.http.get("/metrics").text)
    models = families["embedding_server_model_ready"]
    return {
        "readyz": Seen(is_ok("/readyz"), is_ok("/v2/models/a/ready"), is_ok("/v2/models/b/ready")),
        "v2": Seen(is_ok("/v2/health/ready"), is_ok("/v2/models/a/ready"), is_ok("/v2/models/b/ready")),
        "health": Seen(all(map(is_serving, SERVICES)), is_serving("a"), is_serving("b")),
        "inference": Seen(
            inference(server, "ServerReady"),
            inference(server, "ModelReady", name="a"),
            inference(server, "ModelReady", name="b"),
        ),
        "metrics": Seen(
            families["embedding_server_ready"].value() == 1, models.value(model="a") == 1, models.value(model="b") == 1
        ),
    }


def shows(server: ServerProcess, *seen: bool) -> None:
    """Waits until every wire shows this readiness."""
    expected = Seen(*seen)
    until(lambda: set(readiness(server).values()) == {expected})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Writes a config file with models "a" and "b"; only "a" has a version."""
    write_toy_model(tmp_path / "a" / "1")
    return write_models(tmp_path, {name: tmp_path / name for name in "ab"})


def test_a_model_that_never_loads_or_is_lost_takes_no_server_away(serve: Serve, models: Path) -> None:
    server = serve(model_base_path="", model_config_file=models).answering()
    shows(server, True, True, False)
    problem = f"cannot read the folder {models.parent / 'b'}: No such file or directory"
    assert server.http.get("/readyz").json() == {"status": "ready", "problems": {"b": problem}}
    write_toy_model(models.parent / "incoming")
    (models.parent / "b").mkdir()
    (models.parent / "incoming").rename(models.parent / "b" / "1")
    shows(server, True, True, True)
    assert server.http.get("/readyz").json() == {"status": "ready", "problems": {}}
    # The only version of model a is deleted, and model b still answers.
    shutil.rmtree(models.parent / "a" / "1")
    shows(server, True, False, True)
    assert server.lookup({"user": [4]}, model="b") == {"user": [[4, 40]]}
    shutil.rmtree(models.parent / "b" / "1")
    shows(server, False, False, False)
    assert server.http.get("/healthz").status_code == 200


def test_strict_readiness_needs_every_model(serve: Serve, models: Path) -> None:
    server = serve("--strict_readiness", model_base_path="", model_config_file=models).answering()
    shows(server, False, True, False)
    write_toy_model(models.parent / "incoming")
    (models.parent / "b").mkdir()
    (models.parent / "incoming").rename(models.parent / "b" / "1")
    shows(server, True, True, True)


def test_every_wire_fails_readiness_before_the_server_drains(serve: Serve, models: Path) -> None:
    server = serve(model_base_path="", model_config_file=models, shutdown_delay_s=600).answering()
    shows(server, True, True, False)
    server.signal(signal.SIGTERM)
    server.wait_for_log("draining")
    until(lambda: server.http.get("/readyz").status_code == 503)
    # The metric of a model says whether one of its versions answers; during the drain, model a still does.
    seen = readiness(server)
    assert seen.pop("metrics") == (False, True, False)
    assert set(seen.values()) == {Seen(False, False, False)}
    assert server.http.get("/readyz").json()["problems"].keys() == {"", "b"}
    assert server.lookup({"user": [4]}, model="a") == {"user": [[4, 40]]}, "requests are answered during the delay"
    # SIGKILL ends the server, which would otherwise serve on until the end of its shutdown delay.
    server.signal(signal.SIGKILL)


BODY = json.dumps({"features": {"user": [1]}}).encode()


def open_request(server: ServerProcess) -> socket.socket:
    """Sends a request up to the middle of its body; returns the connection."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
    head = f"POST /v1/models/default:lookup HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
    connection.sendall(head.encode() + BODY[:5])
    return connection


def finish_request(connection: socket.socket) -> bytes:
    """Sends the rest of the body; returns all that the server sends until it closes the connection."""
    connection.sendall(BODY[5:])
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_in_flight_is_answered_before_the_end(serve: Serve, number: int) -> None:
    server = serve().ready()
    with open_request(server) as connection:
        # The server answered a request that came later, so it has begun to read the open one.
        assert server.lookup({"user": [4]}) == {"user": [[4, 40]]}
        server.signal(number)
        server.wait_for_log("draining", signal=signal.Signals(number).name)
        until(lambda: not accepts(server.http_port))
        answer = finish_request(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"embeddings":{"user":[[1.0,10.0]]}}')
    assert server.exit_code() == 0
    assert server.records[-1]["message"] == "stopped"


def accepts(port: int) -> bool:
    """Says whether a server accepts connections on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


def test_under_load_every_answer_that_comes_is_whole(serve: Serve) -> None:
    server = serve().ready()
    with SteadyClients(server) as clients:
        until(lambda: clients.counts[1] > 100 or clients.wrong)
        assert clients.counts.keys() == {1}
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert clients.wrong == []
    # The server closed the connection between two requests, or no server listens any more. CANCELLED: the client sent
    # the call before it knew that the server had ended the connection; the server did not handle it.
    assert clients.unexpected("UNAVAILABLE", "CANCELLED") == []
    assert not [record for record in server.records if record["level"] in ("error", "raw")]


def test_readiness_fails_first_and_answers_go_on_for_the_delay(serve: Serve) -> None:
    server = serve(shutdown_delay_s=2).ready()
    health = health_pb2_grpc.HealthStub(server.channel)
    server.signal(signal.SIGTERM)
    until(lambda: server.http.get("/readyz").status_code == 503)
    assert server.http.get("/healthz").status_code == 200
    assert server.lookup({"user": [4]}) == {"user": [[4, 40]]}
    assert server.predict_grpc({"user": np.array([4])}, "lookup")["user"].tolist() == [[4, 40]]
    for name in ("", "default"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == 2
    assert server.exit_code() == 0


def test_a_second_signal_does_not_wait_for_what_is_in_flight(serve: Serve) -> None:
    server = serve(drain_timeout_s=3600).ready()
    with open_request(server):
        server.lookup({"user": [1]})
        server.signal(signal.SIGTERM)
        server.wait_for_log("draining")
        until(lambda: not accepts(server.http_port))
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


@pytest.mark.parametrize("data_plane", ["core", "reference"])
def test_a_second_signal_does_not_wait_for_the_delay(serve: Serve, data_plane: str) -> None:
    server = serve(shutdown_delay_s=3600, data_plane=data_plane).ready()
    server.signal(signal.SIGTERM)
    server.wait_for_log("draining")
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0


@pytest.mark.parametrize("wire", ["grpc", "http"])
def test_an_idle_client_that_ignores_the_end_does_not_delay_it(serve: Serve, wire: str) -> None:
    server = serve(drain_timeout_s=3600).ready()
    # The gRPC client does not acknowledge the PING after the server's GOAWAY; the HTTP client sends half a head.
    port, sent, answered = {
        "grpc": (server.grpc_port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), b"\x04"),
        "http": (server.http_port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz", b"200 OK"),
    }[wire]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        assert answered in connection.recv(65536)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


def test_what_is_in_flight_gets_the_drain_timeout_and_no_more(serve: Serve) -> None:
    server = serve(drain_timeout_s=1).ready()
    with open_request(server):
        server.lookup({"user": [1]})
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


def test_a_signal_before_any_model_is_there_ends_well(serve: Serve, tmp_path: Any) -> None:
    server = serve(model_base_path=tmp_path / "nothing")
    server.wait_for_log("listening")
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
