"""Thousands of connections are answered, one too many is refused, and missing descriptors stop nothing."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.raw_http import BODY, answer, connect, post, rest, status
from tests.toy_model import write_toy_model

CLOSE = b"connection: close"
NUMBER = 3000


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
        for sock in socks:
            sock.sendall(request)
        for sock in socks:
            assert status(sock.recv(4096)) == 200
        # A connection with an open request is not idle, so it is not closed for a new one.
        for sock in socks:
            sock.sendall(request[:-1])
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


def cpu_s(pid: int) -> float:
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
