"""Starts the servers to attack as processes on this machine: this project's, grpcio, nghttpd and nginx."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from loadtest.attacks.targets import Target
from loadtest.live_server import ROOT, LiveServer
from loadtest.swap.model import write_version
from loadtest.tls import server_flags, write_ssl_config
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

HOST = "127.0.0.1"
_MODEL, _FEATURE = "attacked", "user"
# Number of ids in an attack target's large request; the answer to it has about 8 MB.
_LARGE_IDS = 32_000
_FILE_BYTES = 8 << 20
# Seconds that a server waits for a client that sends slowly or does not read; an attack lasts longer.
_PATIENCE_S = 1
_IMPATIENT = [
    f"--{name}={_PATIENCE_S}"
    for name in (
        "rest_api_head_timeout_s",
        "rest_api_stall_timeout_s",
        "rest_api_keep_alive_s",
        "tls_handshake_timeout_s",
    )
]
_START_S = 20.0
_TOKEN = b"right"
_CREDENTIALS = b"authorization: Bearer " + _TOKEN


class PeerAbsent(Exception):
    """Raised if a program to attack is not installed on this machine."""


def targets_of(
    host: str, grpc_port: int | None, http_port: int | None, model: str, feature: str, pids: tuple[int, ...]
) -> list[Target]:
    """Returns the ports of a server of this project as targets of attacks: gRPC, HTTP/1.1, and HTTP/2 on the HTTP port.

    Args:
      model, feature: what the victim looks up; ids 0 and 1 must be in its table.
    """
    found = []
    if grpc_port:
        small, large = (_message(model, feature, ids) for ids in ([1], [1] * _LARGE_IDS))
        named = Target("ours", "http2", host, grpc_port, PREDICT_METHOD, small, large, is_grpc=True, pids=pids)
        found.append(replace(named, model=model, feature=feature))
    if http_port:
        small, large = (json.dumps({"features": {feature: ids}}).encode() for ids in ([1], [1] * _LARGE_IDS))
        named = Target("ours", "http1", host, http_port, f"/v1/models/{model}:lookup", small, large, pids=pids)
        found.append(replace(named, model=model, feature=feature))
        found.append(replace(found[-1], peer="ours h2c", wire="http2", takes_http1=True))
    return found


def reference_of(
    host: str, http_port: int, admin_port: int, model: str, feature: str, pids: tuple[int, ...] = ()
) -> Target:
    """Returns a server with the file of write_callers() as a target, whose victim asks for a model's status."""
    path = f"/v1/models/{model}"
    signed = Target("ours", "http1", host, http_port, path, pids=pids, admin_port=admin_port, credentials=_CREDENTIALS)
    return replace(signed, model=model, feature=feature)


def write_callers(folder: Path) -> Path:
    """Writes an --auth_config with one caller, who has all rights and the token of reference_of()."""
    file = folder / "auth.toml"
    file.write_text(
        f"""[[caller]]
        name = "attacked"
        token_sha256 = ["{hashlib.sha256(_TOKEN).hexdigest()}"]
        [[caller.allow]]
        models = ["*"]
        rights = ["predict", "metadata", "admin"]
        """
    )
    return file


def _message(model: str, feature: str, ids: list[int]) -> bytes:
    data: bytes = predict_request(message_classes()[0], model, "lookup", {feature: ids}).SerializeToString()
    return b"\0" + struct.pack(">I", len(data)) + data


@contextmanager
def ours(folder: Path, threads: int, flags: list[str]) -> Iterator[list[Target]]:
    """Serves a small model with three servers of this project: one is plain, one has callers, and one has TLS ports.

    The last is left out if openssl is not installed.
    """
    write_version(folder / _MODEL / "1", 1, 0)
    given = [f"--model_base_path={folder / _MODEL}", f"--model_name={_MODEL}", "--graph_signatures=off"]
    given += [f"--threads={threads}", *_IMPATIENT, *flags]
    with ExitStack() as stack:
        server = stack.enter_context(LiveServer(*given))
        found = _of_server(server.ready())
        signed = stack.enter_context(
            LiveServer(*given, f"--auth_config={write_callers(folder)}", f"--delta_journal_dir={folder}")
        ).ready()
        http_port, admin_port = (int(where.rpartition(":")[2]) for where in (signed.http, signed.admin))
        found.append(reference_of(HOST, http_port, admin_port, _MODEL, _FEATURE, (signed.pid,)))
        config = write_ssl_config(folder)
        if config is None:
            yield found
            return
        # Do not wait until the second server, which has the TLS ports, is ready: the victim's first request waits until
        # that server's model is loaded.
        second = stack.enter_context(LiveServer(*given, *server_flags(config)))
        yield found + secured(_of_server(second))


def _of_server(server: LiveServer) -> list[Target]:
    grpc_port, http_port = (int(where.rpartition(":")[2]) for where in (server.grpc, server.http))
    return targets_of(HOST, grpc_port, http_port, _MODEL, _FEATURE, (server.pid,))


def secured(targets: list[Target]) -> list[Target]:
    """Returns the same ports with TLS instead of plain TCP. With TLS, the HTTP port offers HTTP/1.1 only."""
    return [replace(target, is_tls=True) for target in targets if target.is_grpc or target.wire == "http1"]


@contextmanager
def grpcio(folder: Path) -> Iterator[list[Target]]:
    """Serves an echo method with grpcio, as a target of attacks."""
    with _process([sys.executable, "-m", "loadtest.attacks.grpcio_echo"], folder) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        small, large = (b"\0" + struct.pack(">I", size) + b"e" * size for size in (100, 2 << 20))
        yield [Target("grpcio", "http2", HOST, port, "/echo/Echo", small, large, is_grpc=True, pids=(process.pid,))]


@contextmanager
def nghttpd(folder: Path) -> Iterator[list[Target]]:
    """Serves files with nghttpd, as a target of attacks."""
    program, port = _program("nghttpd"), _free_port()
    _write_files(folder)
    with _process([program, "--no-tls", f"--htdocs={folder}", f"--address={HOST}", str(port)], folder) as process:
        _wait_for(port)
        yield [Target("nghttpd", "http2", HOST, port, "/small", large_path="/large", pids=(process.pid,))]


@contextmanager
def nginx(folder: Path) -> Iterator[list[Target]]:
    """Serves files with one worker of nginx, on a port for HTTP/2 and a port for HTTP/1.1."""
    program, http2_port, http1_port = _program("nginx"), _free_port(), _free_port()
    _write_files(folder)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"""{user} daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{ worker_connections 8192; }}
        http {{
            client_header_timeout {_PATIENCE_S}s; client_body_timeout {_PATIENCE_S}s; send_timeout {_PATIENCE_S}s;
            keepalive_timeout {_PATIENCE_S}s; access_log off; default_type text/plain;
            client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
            uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
            server {{
                listen {HOST}:{http2_port} http2; listen {HOST}:{http1_port}; root {folder};
            }}
        }}"""
    )
    with _process([program, "-p", str(folder), "-c", str(folder / "nginx.conf")], folder) as process:
        _wait_for(http1_port)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        pids = (process.pid, *(int(pid) for pid in children))
        yield [
            Target("nginx", "http2", HOST, http2_port, "/small", large_path="/large", pids=pids),
            Target("nginx", "http1", HOST, http1_port, "/small", large_path="/large", pids=pids),
        ]


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if not found:
        raise PeerAbsent(f"{name} is not installed: skipped")
    return found


def _write_files(folder: Path) -> None:
    (folder / "small").write_bytes(b"s" * 100)
    (folder / "large").write_bytes(b"l" * _FILE_BYTES)


@contextmanager
def _process(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def _wait_for(port: int) -> None:
    end_s = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


PEERS: dict[str, Callable[[Path], AbstractContextManager[list[Target]]]] = {
    "grpcio": grpcio,
    "nghttpd": nghttpd,
    "nginx": nginx,
}


def pin(pids: tuple[int, ...], processors: set[int]) -> None:
    """Binds all threads of processes to processors (Linux); threads that the processes start later are bound too."""
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), processors)
