"""Opens thousands of connections to a server, and prints their memory and the response time of one more client.

python -m loadtest.connections --count=10000 --wire=http --folder=/some/disk [flags of the server]

Both this process and the server need a hard limit on open files above the count (`ulimit -Hn`). Every connection gets
one answer before the measurement and one after it. The test suite does this with 3,000 connections.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np

from loadtest.live_server import LiveServer
from loadtest.swap.model import write_version
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

# Number of file descriptors that this process, or the server, needs beside its connections.
_SPARE = 500
_TIMEOUT_S = 60
_BODY = b'{"features": {"user": [1]}}'
_LOOKUP = b"POST /v1/models/many:lookup HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
# Sources of these bytes: RFC 9113, 3.4 (preface), 6.5 (empty SETTINGS frame), 6.7 (PING and its ACK).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"as ever?"
_PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"as ever?"


def main() -> int:
    """Opens and measures the connections; returns 1 if one got no answer, 2 if the limit on open files is too low."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.connections")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--wire", choices=("http", "grpc"), default="http")
    parser.add_argument("--requests", type=int, default=2000, help="measured one after the other, each time")
    parser.add_argument("--folder", type=Path, help="where a small model is written; default: the temporary folder")
    options, flags = parser.parse_known_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < options.count + _SPARE:
        _say(f"{options.count} connections need a limit on open files of {options.count + _SPARE}; it is {hard}")
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        write_version(Path(scratch) / "many" / "1", 1, 0)
        given = [f"--model_base_path={scratch}/many", "--model_name=many", "--graph_signatures=off"]
        given += [f"--max_connections={options.count + _SPARE // 2}", "--rest_api_keep_alive_s=600"]
        with LiveServer(*given, *flags) as server:
            return _measure(server.ready(), options)


def _measure(server: LiveServer, options: argparse.Namespace) -> int:
    where = (server.http if options.wire == "http" else server.grpc).removeprefix("http://")
    host, _, port = where.rpartition(":")
    with ExitStack() as stack:
        ask = _lookup_function(options.wire, (host, int(port)), stack)
        _times(ask, options.requests)
        _say(f"with 1 connection:  {server.held()}; {_times(ask, options.requests)}")
        before = server.held()
        started_s = time.perf_counter()
        with ExitStack() as many:
            socks = [
                many.enter_context(socket.create_connection((host, int(port)), _TIMEOUT_S))
                for _ in range(options.count)
            ]
            answered = _answered(socks, options.wire, is_first=True)
            seconds = time.perf_counter() - started_s
            _say(f"{answered} of {options.count} were answered, {seconds:.1f} s from the first to the last")
            held = server.held()
            each_kb = (held.private_mib - before.private_mib) * 2**20 / 1e3 / options.count
            _say(f"beside {options.count}:  {held}, {each_kb:.1f} KB each; {_times(ask, options.requests)}")
            again = _answered(socks, options.wire, is_first=False)
            _say(f"{again} of {options.count} were answered again")
        while server.held().descriptors > before.descriptors:
            time.sleep(0.1)
        _say(f"without them again: {server.held()}; {_times(ask, options.requests)}")
    for fault, count in server.faults.items():
        _say(f"logged {count} times: {fault}")
    return 0 if answered == again == options.count and not server.faults else 1


def _answered(socks: Sequence[socket.socket], wire: str, *, is_first: bool) -> int:
    """Sends a request on each connection, then reads all answers; returns the number of correct answers."""
    sent = _LOOKUP if wire == "http" else (_PREFACE if is_first else b"") + _PING
    for sock in socks:
        sock.sendall(sent)
    return sum(
        _reads(sock, b"HTTP/1.1 200" if wire == "http" else _PONG, b"}" if wire == "http" else b"") for sock in socks
    )


def _reads(sock: socket.socket, wanted: bytes, end: bytes) -> bool:
    data = b""
    try:
        while wanted not in data or not data.endswith(end):
            more = sock.recv(1 << 16)
            if not more:
                return False
            data += more
    except OSError:
        return False
    return True


def _lookup_function(wire: str, where: tuple[str, int], stack: ExitStack) -> Callable[[], object]:
    """Returns a function that looks up one row over a connection of its own, and checks the answer."""
    if wire == "http":
        sock = stack.enter_context(socket.create_connection(where, _TIMEOUT_S))

        def ask() -> None:
            sock.sendall(_LOOKUP)
            data = b""
            while not data.endswith(b"}"):
                data += sock.recv(1 << 16)
            assert set(json.loads(data.partition(b"\r\n\r\n")[2])["embeddings"]["user"][0]) == {1}

        return ask
    request_class, response_class = message_classes()
    request = predict_request(request_class, "many", "lookup", {"user": [1]}).SerializeToString()
    channel = stack.enter_context(grpc.insecure_channel(f"{where[0]}:{where[1]}"))
    call = channel.unary_unary(PREDICT_METHOD)
    values = response_class.FromString(call(request, timeout=_TIMEOUT_S)).outputs["user"].float_val
    assert set(values) == {1}, values
    return lambda: call(request, timeout=_TIMEOUT_S)


def _times(ask: Callable[[], object], count: int) -> str:
    seconds = []
    for _ in range(count):
        started_s = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - started_s)
    half, most, all_of_them = np.quantile(seconds, [0.5, 0.99, 1.0]) * 1e3
    return f"one request: median {half:.3f} ms, p99 {most:.3f} ms, longest {all_of_them:.1f} ms"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
