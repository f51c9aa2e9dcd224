"""Thousands of connections, idle ones among them: each is answered, and one more is told why not."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from service.configuration.settings import Settings
from tests.conformance.wires import fill_tensor, read_tensor
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.h2_client import H2Client, framed
from tests.integration.limited import cpu_s
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, until, unused_ports
from tests.integration.raw_http import BODY, answer, connect, post, rest, send, status
from tests.toy_model import write_toy_model

CLOSE = b"connection: close"
NUMBER = 3000
# Kinds and flags of HTTP/2 frames.
DATA, PING, GOAWAY, END_STREAM, ACK = 0, 6, 7, 1, 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with long timeouts that may have NUMBER connections."""
    folder = tmp_path_factory.mktemp("connections") / "model"
    write_toy_model(folder / "1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < NUMBER + 500:
        pytest.skip(f"the limit on open files is {hard}")
    settings: dict[str, object] = {
        "model_base_path": folder,
        "graph_signatures": "off",
        "stall_timeout_s": PATIENCE_S,
        "max_connections": NUMBER,
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    with ServerProcess(**settings) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        server.ready().http.close()
        yield server
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_answered(server: ServerProcess) -> bool:
    """Says whether a lookup on a new connection is answered."""
    try:
        return status(answer(server, post(BODY, CLOSE))) == 200
    except OSError:
        return False


def test_thousands_of_connections_are_answered_and_one_more_is_told_why_not(server: ServerProcess) -> None:
    # The server, started with a soft limit of 1024 open files, has raised it to the hard limit.
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    # The connection on which the fixture asked for readiness is closed, so it does not count against the limit.
    until(lambda: is_answered(server))
    request = post(BODY)
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(server)) for _ in range(NUMBER)]
        # A connection with an open request is not idle, so it is not closed for a new one. The server has read the open
        # request once it answers the one before.
        for sock in socks:
            sock.sendall(request + request[:-1])
        for sock in socks:
            assert status(sock.recv(4096)) == 200
        until(lambda: not is_answered(server))
        for _ in range(20):
            with connect(server) as sock:
                assert rest(sock) == b"", "a connection over the limit is closed without an answer"
        for sock in socks[::100]:
            sock.sendall(request[-1:])
            assert status(sock.recv(4096)) == 200
    until(lambda: is_answered(server))


def test_a_server_out_of_descriptors_waits_for_some_and_answers_those_it_has(server: ServerProcess) -> None:
    until(lambda: is_answered(server))
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    in_use = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    with ExitStack() as stack:
        first = stack.enter_context(connect(server))
        first.sendall(post(BODY))
        assert status(first.recv(4096)) == 200
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (in_use + 8, limits[1]))
        for _ in range(40):
            stack.enter_context(connect(server))
        used_s = cpu_s(server.pid)
        time.sleep(1.0)
        # A server that calls accept() in a loop while it lacks descriptors would use the whole second.
        assert cpu_s(server.pid) - used_s < 0.8
        first.sendall(post(BODY))
        assert status(first.recv(4096)) == 200
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: is_answered(server))


_PATH = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
# Times in seconds for which well-known balancers keep an idle connection to a server, by their documentation.
IDLE_S = {"nginx": 60, "AWS": 60, "Google Cloud": 600}
SCALE = 300
REQUESTS = 180
INPUTS: dict[str, Any] = {
    "user": np.array([1]),
    "tags__values": np.array([3]),
    "tags__row_splits": np.array([0, 1]),
}
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    upstream http_server {{ server 127.0.0.1:{http_port}; keepalive 8; keepalive_timeout {idle_ms}ms; }}
    upstream grpc_server {{ server 127.0.0.1:{grpc_port}; keepalive 8; keepalive_timeout {idle_ms}ms; }}
    server {{
        listen 127.0.0.1:{http_front};
        location / {{
            proxy_pass http://http_server; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_next_upstream off;
        }}
    }}
    server {{
        listen 127.0.0.1:{grpc_front} http2;
        location / {{ grpc_pass grpc://grpc_server; grpc_next_upstream off; }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    retries 0
    http-reuse always
    default-server pool-purge-delay {purge_ms}ms
frontend http
    bind 127.0.0.1:{http_front}
    default_backend http_server
backend http_server
    server one 127.0.0.1:{http_port}
frontend grpc
    bind 127.0.0.1:{grpc_front} proto h2
    default_backend grpc_server
backend grpc_server
    server one 127.0.0.1:{grpc_port} proto h2
"""
PROXIES = {
    "nginx": (NGINX, ["-c"], []),
    "haproxy": (HAPROXY, ["-db", "-f"], []),
}


@pytest.fixture
def behind(serve: Serve, tmp_path: Path) -> Iterator[Callable[[str], tuple[ServerProcess, int, int]]]:
    """Returns a function that starts a server and a proxy; it returns the server and the proxy's two ports."""
    with ExitStack() as stack:

        def start(name: str) -> tuple[ServerProcess, int, int]:
            program = shutil.which(name, path=_PATH)
            if program is None:
                pytest.skip(f"{name} is not installed")
            server = serve().ready()
            http_front, grpc_front = unused_ports(2)
            text, before, after = PROXIES[name]
            file = tmp_path / f"{name}.conf"
            file.write_text(
                text.format(
                    folder=tmp_path,
                    http_port=server.http_port,
                    grpc_port=server.grpc_port,
                    http_front=http_front,
                    grpc_front=grpc_front,
                    idle_ms=60_000 // SCALE,
                    purge_ms=5_000 // SCALE,
                )
            )
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen([program, *before, str(file), *after], cwd=tmp_path, stdout=log, stderr=log)

            def stop() -> None:
                process.terminate()
                process.wait(PATIENCE_S)

            stack.callback(stop)
            until(lambda: process.poll() is not None or _answers(http_front))
            assert process.poll() is None, (tmp_path / f"{name}.log").read_text()
            return server, http_front, grpc_front

        yield start


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("name", PROXIES)
def test_an_hour_of_sparse_requests_has_no_failure(
    behind: Callable[[str], tuple[ServerProcess, int, int]], name: str
) -> None:
    _, http_port, grpc_port = behind(name)
    pauses = random.Random(name)
    gaps = [pauses.expovariate(SCALE / 20) for _ in range(REQUESTS)]

    def by_http() -> list[str]:
        failed = []
        for gap in gaps:
            time.sleep(gap)
            url = f"http://127.0.0.1:{http_port}/v1/models/default:lookup"
            answer = httpx.post(url, json={"features": {"user": [1]}}, timeout=PATIENCE_S)
            if answer.status_code != 200 or answer.json()["embeddings"] != {"user": [[1, 10]]}:
                failed.append(f"{answer.status_code} {answer.text}")
        return failed

    def by_grpc() -> list[str]:
        failed = []
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            for gap in gaps:
                time.sleep(gap)
                try:
                    assert predict_grpc(channel, INPUTS, "lookup")["user"].tolist() == [[1, 10]]
                except grpc.RpcError as error:
                    failed.append(f"{error.code()} {error.details()}")
        return failed

    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(by_http), threads.submit(by_grpc)]
    assert [run.result() for run in runs] == [[], []]


def test_the_default_is_longer_than_every_common_balancers() -> None:
    assert Settings().rest_api_keep_alive_s > max(IDLE_S.values())


def test_the_longest_idle_connection_makes_room_for_a_new_one(serve: Serve) -> None:
    server = serve(max_connections=4).answering()
    server.wait_for_log("loaded")
    with ExitStack() as stack:
        held = [stack.enter_context(connect(server)) for _ in range(4)]
        for sock in held:
            _ask(sock)
        newest: list[Any] = []

        def is_admitted() -> bool:
            # The others are in use, so that the core, which looks at its connections once a second, never finds them
            # idle for as long as the first one.
            for sock in held[1:]:
                _ask(sock)
            newest[:] = [stack.enter_context(connect(server))]
            try:
                newest[0].sendall(post(BODY))
                return _answer(newest[0]) == 200
            except ConnectionError:
                return False

        until(is_admitted)
        assert rest(held[0]) == b"", "the connection that was idle for longest is closed"
        for sock in (*held[1:], newest[0]):
            _ask(sock)
    until(lambda: _dropped(server).get("idle", 0) >= 1)


def _ask(sock: Any) -> None:
    sock.sendall(post(BODY))
    assert _answer(sock) == 200


def _answer(sock: Any) -> int:
    """Reads an answer to BODY; returns its status, 0 if the connection was closed."""
    data = b""
    while not data.endswith(b"}}"):
        piece = sock.recv(4096)
        if not piece:
            return 0
        data += piece
    return status(data)


def _dropped(server: ServerProcess) -> dict[str, float]:
    try:
        text = server.http.get("/metrics").text
    except httpx.TransportError:
        return {}
    family = read_exposition(text)["embedding_server_connections_dropped_total"]
    return {labels["reason"]: family.value(**labels) for labels in family.labelled()}


def test_bodies_of_the_admin_port_are_bounded_in_bytes_and_time(serve: Serve) -> None:
    size = 1 << 20
    server = serve(admin_port="auto", stall_timeout_s=5, max_request_bytes=size, max_bytes_in_flight=16 * size).ready()
    head = f"POST /v1/models/default/tables/user:upsert HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.admin_port), PATIENCE_S))
            for _ in range(3)
        ]
        # Each body stops before its last byte. As text that is parsed, one counts as more than half of the limit.
        for client in clients:
            send(client, [head + bytes(size - 1)])
        ended = [status(rest(client)) for client in clients]
        # An answer may be lost when the connection is closed while its client still sends.
        assert set(ended) <= {503, 504, 0}
        assert ended.count(504) <= 1
        alone = stack.enter_context(socket.create_connection(("127.0.0.1", server.admin_port), PATIENCE_S))
        send(alone, [head + bytes(size - 1)])
        assert status(rest(alone)) == 504
    upsert = httpx.post(
        f"http://127.0.0.1:{server.admin_port}/v1/models/default/tables/user:upsert", content=bytes(size)
    )
    assert upsert.status_code == 400


def test_a_second_signal_does_not_wait_for_a_body_of_the_admin_port(serve: Serve) -> None:
    server = serve(admin_port="auto", stall_timeout_s=PATIENCE_S, drain_timeout_s=PATIENCE_S).ready()
    with socket.create_connection(("127.0.0.1", server.admin_port), PATIENCE_S) as client:
        client.sendall(b"POST /v1/config:reload HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        server.signal(signal.SIGTERM)
        server.wait_for_log("draining")
        server.signal(signal.SIGTERM)
        # Else it would wait for PATIENCE_S.
        assert server.exit_code() == 0


def test_a_connection_that_reached_its_age_answers_what_is_open_and_ends(serve: Serve) -> None:
    server = serve(grpc_channel_arguments="grpc.max_connection_age_ms=200").answering()
    server.wait_for_log("loaded")
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    for name, array in INPUTS.items():
        fill_tensor(request.inputs[name], array)
    message = framed(request.SerializeToString())
    with H2Client(server.grpc_port) as client:
        stream = client.begin()
        client.send(stream, message[:7], is_last=False)
        codes, told = [], b""
        for frame in client.frames():
            head, content = frame[:9], frame[9:]
            if head[3] == GOAWAY:
                if not codes:
                    # The client is told to begin no further call while half of its message is sent.
                    client.socket.sendall(frame_of(DATA, END_STREAM, stream, message[7:]))
                codes.append(int.from_bytes(content[4:8], "big"))
            elif head[3] == PING and head[4] != ACK:
                client.socket.sendall(frame_of(PING, ACK, 0, content))
            elif head[3] == DATA and int.from_bytes(head[5:], "big") == stream:
                told += content
    assert set(codes) == {0}
    answer = message_class("tensorflow.serving.PredictResponse").FromString(told[5:])
    assert read_tensor(answer.outputs["user"]).tolist() == [[1, 10]]

    def is_told_to_close() -> bool:
        sock.sendall(post(BODY))
        answer = b""
        while not answer.endswith(b"}}"):
            answer += sock.recv(4096)
        assert status(answer) == 200
        return b"connection: close" in answer

    with connect(server) as sock:
        until(is_told_to_close)
        assert rest(sock) == b""


def test_a_call_that_outlasts_the_grace_of_its_connection_is_cut(serve: Serve) -> None:
    # So much grace that a busy machine sees the age before the grace is over, too.
    arguments = "grpc.max_connection_age_ms=200,grpc.max_connection_age_grace_ms=2000"
    server = serve(grpc_channel_arguments=arguments).answering()
    with H2Client(server.grpc_port) as client:
        client.send(client.begin(), framed(b"never whole")[:7], is_last=False)
        assert GOAWAY in {frame[3] for frame in client.frames()}


def frame_of(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Returns the bytes of an HTTP/2 frame."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content
