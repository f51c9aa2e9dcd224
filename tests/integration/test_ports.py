"""Ports can be off, free ones can be asked for, and a port can have several addresses, of IPv4 and of IPv6."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment, predict_grpc

INPUTS: dict[str, Any] = {
    "user": np.array([1]),
    "tags__values": np.array([3]),
    "tags__row_splits": np.array([0, 1]),
}


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def listening_ports(pid: int) -> set[int]:
    """Returns the numbers of the TCP ports on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@contextmanager
def channel_to(target: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target) as channel:
        yield channel


def asks(target: str) -> bool:
    """Says whether a server at a gRPC target answers a lookup."""
    with channel_to(target) as channel:
        answer = predict_grpc(channel, INPUTS, "lookup")
    return answer["user"].tolist() == [[1, 10]]


def is_healthy(*flags: str) -> bool:
    """Says whether the image's health check finds the server ready."""
    command = [sys.executable, "-m", "service.healthcheck", "--host=127.0.0.1", *flags]
    return subprocess.run(command, cwd=ROOT, env=environment(), timeout=PATIENCE_S).returncode == 0


def test_0_is_off_as_in_tensorflow_serving(serve: Serve, tmp_path: Path) -> None:
    grpc_only = serve(rest_api_port=0)
    ports = grpc_only.wait_for_log("listening")
    assert ports.keys().isdisjoint({"http_port", "admin_port"})
    assert listening_ports(grpc_only.pid) == {ports["grpc_port"]}
    grpc_only.wait_for_log("loaded")
    assert asks(f"127.0.0.1:{ports['grpc_port']}")
    assert is_healthy("--rest_api_port=0", f"--port={ports['grpc_port']}")

    http_only = serve(port=0).ready()
    assert http_only.grpc_port is None
    assert listening_ports(http_only.pid) == {http_only.http_port}
    assert http_only.lookup({"user": [1]}) == {"user": [[1, 10]]}

    path = tmp_path / "grpc.sock"
    socket_only = serve(port=0, rest_api_port=0, grpc_socket_path=path)
    assert socket_only.wait_for_log("listening").keys().isdisjoint({"http_port", "grpc_port", "admin_port"})
    socket_only.wait_for_log("loaded")
    assert asks(f"unix:{path}")
    assert listening_ports(socket_only.pid) == set()
    assert is_healthy("--rest_api_port=0", "--port=0", f"--grpc_socket_path={path}")
    for server in (grpc_only, http_only, socket_only):
        server.signal(15)
        assert server.exit_code() == 0
    assert not is_healthy("--rest_api_port=0", "--port=0", f"--grpc_socket_path={path}")


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "[::]", "0.0.0.0,::", "127.0.0.1,[::1]"])
def test_both_families_reach_a_server(serve: Serve, host: str) -> None:
    server = serve(host=host, admin_port="auto", admin_host="127.0.0.1,::1").answering()
    server.wait_for_log("loaded")
    _ask_by_both(server)


def _ask_by_both(server: ServerProcess) -> None:
    for address in ("127.0.0.1", "[::1]"):
        assert asks(f"{address}:{server.grpc_port}")
        body = {"features": {"user": [1]}}
        answer = httpx.post(f"http://{address}:{server.http_port}/v1/models/default:lookup", json=body, timeout=60)
        assert answer.json()["embeddings"] == {"user": [[1, 10]]}
        assert httpx.get(f"http://{address}:{server.admin_port}/healthz", timeout=60).status_code == 200


@needs_ipv6
def test_an_address_that_is_in_use_is_named(serve: Serve) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        server = serve(host="127.0.0.1,::1", rest_api_port=port)
        assert server.exit_code() == 2
    assert f"cannot listen on [::1]:{port} for HTTP: Address already in use" in server.text()
