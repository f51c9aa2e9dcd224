"""Starts servers with resource limits: on file size, descriptors or memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx

from tests.integration.process import PATIENCE_S, ROOT, environment, skip_without_core, until, unused_ports

_LIMIT = """
import json, os, resource, sys
for which, value in json.loads(sys.argv[1]):
    resource.setrlimit(which, (value, value))
os.execv(sys.argv[2], sys.argv[2:])
"""
LOOKUP = "/v1/models/default:lookup"


@contextmanager
def limited(
    base: Path | None = None,
    *,
    limits: Mapping[int, int] | None = None,
    prefix: Sequence[str] = (),
    flags: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | int = subprocess.DEVNULL,
    **settings: object,
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Starts a server with limits of resource.RLIMIT_*, waits until it answers, and stops it at the end.

    The ports are chosen here, because the log, which names them, goes to `stderr`. `prefix` is a command that runs the
    server's command line.
    """
    skip_without_core(settings)
    http_port, grpc_port = unused_ports(2)
    given = {
        "host": "127.0.0.1",
        "port": grpc_port,
        "rest_api_port": http_port,
        **({} if base is None else {"model_base_path": base}),
        "graph_signatures": "off",
        "file_system_poll_wait_seconds": 0.05,
    } | settings

    command = [*prefix, sys.executable, "-m", "service", *flags]
    command += [f"--{name}={value}" for name, value in given.items()]
    if limits:
        # An intermediate program sets the limits. With preexec_fn, grpcio's fork handlers of this process would run
        # under the limits, and could log or abort.
        command = [sys.executable, "-c", _LIMIT, json.dumps(list(limits.items())), *command]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**(variables or {})),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=PATIENCE_S) as http:
            until(lambda: process.poll() is not None or is_ready(http))
            assert process.poll() is None, f"it ended with {process.returncode}"
            yield process, http
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def is_ready(http: httpx.Client) -> bool:
    """Says whether a server's /readyz answers 200."""
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def lookup(http: httpx.Client, ids: list[int]) -> Any:
    """Looks up ids in the toy model's table `user`; returns their rows."""
    response = http.post(LOOKUP, json={"features": {"user": ids}})
    assert response.status_code == 200, response.text
    return response.json()["embeddings"]["user"]


def cpu_s(pid: int) -> float:
    """Returns the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_while_idle_s(pid: int, seconds: float) -> float:
    """Returns the processor seconds that a process uses while nobody sends it requests for `seconds`."""
    before = cpu_s(pid)
    time.sleep(seconds)
    return cpu_s(pid) - before
