"""Bytes held by requests to one model leave room for requests to another: two models, a real server, raw sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.exposition import read_exposition
from tests.integration.h2_client import H2Client, framed
from tests.integration.process import PATIENCE_S, ServerProcess, until, write_models
from tests.toy_model import write_toy_model

LIMIT, REQUEST = 32 << 20, 4 << 20
# Number of requests in a flood; together they are longer than LIMIT.
FLOOD = 12
LARGE_BODY = b'{"features": {"user": [1]}}'.ljust(REQUEST)
IDS = [1] * 50_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the models "flooded" and "other" that may hold LIMIT bytes."""
    folder = tmp_path_factory.mktemp("shares")
    write_toy_model(folder / "model" / "1")
    settings: dict[str, object] = {
        "model_config_file": write_models(folder, dict.fromkeys(("flooded", "other"), folder / "model")),
        "graph_signatures": "off",
        "max_bytes_in_flight": LIMIT,
        "max_request_bytes": REQUEST,
        # The clients of this test send slowly, and the server must not cut them off.
        "stall_timeout_s": 3600,
    }
    with ServerProcess(**settings) as server:
        yield server.ready()


def refused(server: ServerProcess, model: str) -> float:
    """Returns how many requests to a model were refused because of the limit on bytes in flight."""
    family = read_exposition(server.http.get("/metrics").text)["embedding_server_refused_total"]
    labels = {"model": model, "reason": "bytes"}
    return family.value(**labels) if labels in family.labelled() else 0.0


def held(server: ServerProcess, model: str) -> float:
    """Returns how many bytes the requests to a model hold, according to the metrics."""
    family = read_exposition(server.http.get("/metrics").text)["embedding_server_in_flight_bytes"]
    return family.value(model=model) if {"model": model} in family.labelled() else 0.0


def send_half(server: ServerProcess, number: int) -> socket.socket:
    """Sends a request body to model "flooded", except its last byte, from its own address of this machine."""
    address = ("127.0.0.1", server.http_port)
    sock = socket.create_connection(address, PATIENCE_S, source_address=(f"127.0.0.{number + 2}", 0))
    head = b"POST /v1/models/flooded:lookup HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % REQUEST
    try:
        sock.sendall(head + b" " * (REQUEST - 1))
    except OSError:
        # The server has refused the request and closed the connection before all bytes were sent.
        pass
    return sock


def assert_the_other_is_answered(server: ServerProcess) -> None:
    """Asks the model "other" for large answers on both wires, and checks that they come."""
    inputs: dict[str, Any] = {"user": np.array(IDS, np.int64)}
    for _ in range(5):
        assert len(server.lookup({"user": IDS}, model="other")["user"]) == len(IDS)
        assert server.predict_grpc(inputs, "lookup", model="other")["user"].shape == (len(IDS), 2)
    assert refused(server, "other") == 0


def test_half_received_bodies_leave_room_for_another_model(server: ServerProcess) -> None:
    before = refused(server, "flooded")
    with ExitStack() as stack:
        for number in range(FLOOD):
            stack.enter_context(closing(send_half(server, number)))
        until(lambda: refused(server, "flooded") - before >= FLOOD // 3)
        until(lambda: LIMIT / 2 < held(server, "flooded") < LIMIT)
        response = server.http.post("/v1/models/flooded:lookup", content=LARGE_BODY)
        assert (response.status_code, response.headers["X-Error-Code"]) == (503, "UNAVAILABLE")
        assert_the_other_is_answered(server)
    until(lambda: held(server, "flooded") == 0)
    until(lambda: server.http.post("/v1/models/flooded:lookup", content=LARGE_BODY).status_code == 200)


def test_half_received_messages_leave_room_for_another_model(server: ServerProcess) -> None:
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "flooded"
    request.output_filter.append("x" * (REQUEST - 100))
    half = framed(request.SerializeToString())[:-1]
    before = refused(server, "flooded")
    client = H2Client(server.grpc_port)
    with closing(client.socket):
        for _ in range(FLOOD):
            client.send(client.begin(), half, is_last=False)
        until(lambda: refused(server, "flooded") - before >= FLOOD // 2)
        client.until(lambda: sum(answer.is_over for answer in client.answers.values()) >= FLOOD // 2)
        assert {answer.status for answer in client.answers.values() if answer.is_over} == {14}
        assert_the_other_is_answered(server)


def test_a_refused_client_that_acknowledges_no_settings_keeps_no_thread_busy(tmp_path: Path) -> None:
    write_toy_model(tmp_path / "1")
    limits = {"max_bytes_in_flight": 1 << 20, "max_request_bytes": 1 << 20, "stall_timeout_s": 3600}
    with ServerProcess(model_base_path=tmp_path, graph_signatures="off", **limits) as server:
        server.ready()
        # This client reads nothing, so it acknowledges no SETTINGS frame.
        with closing((client := H2Client(server.grpc_port)).socket):
            for _ in range(2):
                client.send(client.begin(), framed(b"\n" * 1_000_000)[:30_000], is_last=False)
            until(lambda: refused(server, "") > 0)
            until(lambda: _is_idle(server))


def _is_idle(server: ServerProcess) -> bool:
    """Says whether all connection threads of the core sleep, at each of twenty looks."""
    for _ in range(20):
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith("edge") and rest.split()[0] != "S":
                return False
        time.sleep(0.005)
    return True
