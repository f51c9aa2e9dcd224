"""Starts the servers to attack as processes on this machine, and says how to attack a server."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from loadtest.attacks.targets import Target
from loadtest.live_server import LiveServer
from loadtest.swap.model import write_version
from loadtest.tls import server_flags, write_ssl_config
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

HOST = "127.0.0.1"
_MODEL, _FEATURE = "attacked", "user"
# Number of ids in an attack target's large request; the answer to it has about 8 MB.
_LARGE_IDS = 32_000
# Seconds that a server waits for a client that sends slowly or does not read; an attack lasts longer.
_PATIENCE_S = 1
_IMPATIENT = [f"--{name}={_PATIENCE_S}" for name in ("stall_timeout_s", "rest_api_keep_alive_s")]
_TOKEN = b"right"
_CREDENTIALS = b"authorization: Bearer " + _TOKEN


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


def pin(pids: tuple[int, ...], processors: set[int]) -> None:
    """Binds all threads of processes to processors (Linux); threads that the processes start later are bound too."""
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), processors)
