"""The core and the servers in Python meet on sockets of their own: nothing to remove, nobody else may use them, and
readiness fails if they are gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ServerProcess, until

pytestmark = pytest.mark.slow


def private_sockets(server: ServerProcess) -> dict[str, list[int]]:
    """Returns name -> file descriptors in the server's process of the sockets with abstract names."""
    names = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[7].startswith("@embedding-server-"):
            names[f"socket:[{fields[6]}]"] = "\0" + fields[7][1:]
    found: dict[str, list[int]] = {}
    for number in os.listdir(f"/proc/{server.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{server.pid}/fd/{number}")
        except OSError:
            continue
        if target in names:
            found.setdefault(names[target], []).append(int(number))
    return found


def test_no_file_is_used_and_none_is_left_behind(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = serve().ready()
    assert server.http.get("/v1/models/default").status_code == 200
    assert os.listdir(tmp_path / "temporary") == []
    server.signal(signal.SIGKILL)
    assert server.exit_code() == -signal.SIGKILL
    assert os.listdir(tmp_path / "temporary") == []
    assert private_sockets_of_nobody(server) == []


def private_sockets_of_nobody(server: ServerProcess) -> list[str]:
    """Returns the abstract names that the killed server has left behind."""
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if f"-{server.pid}-" in line]


def test_other_processes_are_refused(serve: Serve) -> None:
    server = serve().ready()
    assert server.http.get("/v1/models/default").status_code == 200
    sockets = private_sockets(server)
    (http,) = [name for name in sockets if name.endswith("-http")]
    (wire,) = [name for name in sockets if name.endswith("-grpc")]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(http.encode())
        try:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass
    with grpc.insecure_channel(f"unix-abstract:{wire[1:]}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        forged = (("x-embedding-server-seal", "0" * 32),)
        with pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, metadata=forged
            )
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    # Connections that other processes keep open use up neither the descriptors nor the core's own connection.
    others = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        before = len(os.listdir(f"/proc/{server.pid}/fd"))
        for one in others:
            one.connect(wire.encode())
        until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < before + 20)
        assert health(server) == health_pb2.HealthCheckResponse.SERVING
        assert server.http.get("/v1/models/default").status_code == 200
    finally:
        for one in others:
            one.close()


def health(server: ServerProcess, service: str = "") -> int | grpc.StatusCode:
    """Returns the server's answer to a health check over gRPC, or the code of its error."""
    try:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(server.channel).Check(request, timeout=PATIENCE_S).status)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: NO SOCKET WAS CUT")
@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_readiness_fails_if_the_servers_in_python_can_not_be_reached(serve: Serve, wire: str) -> None:
    server = serve().ready()
    assert health(server) == health_pb2.HealthCheckResponse.SERVING
    # The socket on which the server in Python listens, and its connections, are shut down, as if it had ended.
    for name, numbers in private_sockets(server).items():
        if name.endswith(f"-{wire}"):
            for number in numbers:
                shut_down(server.pid, number)
    reason = server.wait_for_log("not ready")["reason"]
    assert reason == "the native core can not reach the servers in Python: status, metrics and forwarded requests fail"
    until(lambda: server.http.get("/readyz").status_code == 503)
    until(lambda: health(server) != health_pb2.HealthCheckResponse.SERVING)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0


def shut_down(process: int, number: int) -> None:
    """Shuts down a socket of another process, by its file descriptor. Source: pidfd_getfd(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(process)
    try:
        copied = libc.syscall(438, pidfd, number, 0)
        if copied < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        with socket.socket(fileno=copied) as one:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                # A connection that has ended meanwhile.
                return
    finally:
        os.close(pidfd)


def test_a_socket_path_in_use_is_not_stolen(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = serve(grpc_socket_path=path).ready()
    second = serve(grpc_socket_path=path)
    assert second.exit_code() == 2
    assert f"--grpc_socket_path={path}: another server listens there. Stop it, or choose another path." in second.text()
    assert "Traceback" not in second.text()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    first.signal(signal.SIGKILL)
    first.exit_code()
    # The socket of a killed server is replaced.
    assert path.is_socket()
    third = serve(grpc_socket_path=path).ready()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    third.signal(signal.SIGTERM)
    assert third.exit_code() == 0
    path.write_text("a file")
    fourth = serve(grpc_socket_path=path)
    assert fourth.exit_code() == 2
    assert "there is a file that is no socket" in fourth.text() and path.read_text() == "a file"


def test_signals_that_end_nothing(serve: Serve) -> None:
    server = serve().ready()
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        server.signal(number)
        assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    until(lambda: sum("Thread 0x" in record["message"] for record in list(server.records)) >= 2)
    server.wait_for_log("SIGHUP: the list of models is read again")
    assert httpx.get(f"http://127.0.0.1:{server.http_port}/readyz", timeout=PATIENCE_S).status_code == 200
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
