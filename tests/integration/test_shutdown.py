"""A draining server answers the requests in flight, takes no new ones, and exits with a status that says so."""

from __future__ import annotations

import json
import signal
import socket
import threading
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, predict_grpc, until

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
    is_stopping = threading.Event()
    counts = {"http": 0, "grpc": 0}
    faults: list[Any] = []

    def over_http() -> None:
        with httpx.Client(base_url=server.http.base_url, timeout=60) as http:
            while True:
                try:
                    response = http.post("/v1/models/default:lookup", content=BODY)
                except httpx.TransportError as error:
                    # The server closed the connection between two requests, or no server listens any more.
                    if not is_stopping.is_set():
                        faults.append(error)
                    return
                if (response.status_code, response.json()) != (200, {"embeddings": {"user": [[1, 10]]}}):
                    faults.append(response.text)
                counts["http"] += 1

    def over_grpc() -> None:
        while True:
            try:
                outputs = predict_grpc(server.channel, {"user": np.array([1])}, "lookup")
            except grpc.RpcError as error:
                # CANCELLED: the client sent the call before it knew that the server had ended the connection; the
                # server did not handle it.
                refusals = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                if not is_stopping.is_set() or error.code() not in refusals:
                    faults.append(error)
                return
            if outputs["user"].tolist() != [[1, 10]]:
                faults.append(outputs)
            counts["grpc"] += 1

    threads = [threading.Thread(target=target) for target in (over_http, over_grpc) * 2]
    for thread in threads:
        thread.start()
    until(lambda: (counts["http"] > 50 and counts["grpc"] > 50) or faults)
    is_stopping.set()
    server.signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert server.exit_code() == 0
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
