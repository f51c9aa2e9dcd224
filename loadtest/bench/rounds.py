"""Runs the benchmark's cases: starts servers, checks answers of each case, and measures all cases in each round."""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from loadtest.bench.cases import NEED_CARGO, PLAIN, Case, Mode, Server, bound_to, start, write_mode_files
from loadtest.bench.generator import Ask, Shot, drive
from loadtest.bench.workloads import Arrays, Data, Encoded, check, grpc_answer, json_answer
from loadtest.live_server import Held, client_context, cpu_s, held_by

_WARM_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Options:
    """Number, duration and load of the benchmark's rounds. server_cores, generator_cores: should be different cores."""

    rounds: int
    seconds: float
    connections: int
    server_cores: frozenset[int]
    generator_cores: frozenset[int]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of all rounds of one case, and the memory that the case's server held after the rounds."""

    case: Case
    shots: tuple[Shot, ...]
    held: Held


def write_answers(folder: Path, data: Data) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for workload in ("W1", "W2", "W3"):
        arrays = data.expected(workload, data.requests(workload)[0])
        (folder / f"{workload}.grpc.answer").write_bytes(grpc_answer(arrays))
        if workload != "W3":
            (folder / f"{workload}.json.answer").write_bytes(json_answer(arrays))


def can_run(wanted: Sequence[Case]) -> list[Case]:
    """Returns the cases that can run here: all, or without cargo those that do not need it."""
    return [case for case in wanted if shutil.which("cargo") or case.server not in NEED_CARGO]


@contextmanager
def running(wanted: Sequence[Case], folder: Path, options: Options) -> Iterator[dict[str, Server]]:
    """Starts the servers of the benchmark's cases, and yields them when all are ready; stops them at the end."""
    servers: dict[str, Server] = {}
    everything = frozenset(os.sched_getaffinity(0))
    if any(case.mode is not PLAIN for case in wanted):
        write_mode_files(folder)
    try:
        for case in wanted:
            if case.server not in servers:
                cores = everything if case.is_free else options.server_cores
                with bound_to(cores):
                    servers[case.server] = start(case.server, folder)
                if len(servers) == 1:
                    # The other servers then read their files from the page cache.
                    servers[case.server].ready()
        for server in [*servers.values()][1:]:
            server.ready()
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def measure(
    wanted: Sequence[Case], folder: Path, data: Data, options: Options, say: Callable[[str], None]
) -> list[Measured]:
    """Measures the benchmark's cases in turn in each round; raises AssertionError or LoadError at a wrong answer."""
    with running(wanted, folder, options) as servers:
        asks = {case.name: ask_of(case, data, servers[case.server]) for case in wanted}
        shots: dict[str, list[Shot]] = {case.name: [] for case in wanted}
        held: dict[str, Held] = {}
        for number in range(options.rounds):
            for case in wanted:
                server = servers[case.server]
                cores = options.generator_cores if not case.is_free else frozenset(os.sched_getaffinity(0))
                with bound_to(cores):
                    shot = drive(
                        asks[case.name],
                        server.ports[case.wire.port],
                        connections=options.connections,
                        seconds=options.seconds,
                        warm_s=_WARM_SHARE * options.seconds,
                        server_cpu_s=lambda case=case: cpu_s(servers[case.server].pid),
                    )
                shots[case.name].append(shot)
                held[case.name] = held_by(server.pid)
                say(f"round {number + 1} {case.name}: {shot.requests_per_s:.0f}/s")
        # After the last round, one more answer of each case is checked.
        for case in wanted:
            ask_of(case, data, servers[case.server])
        return [Measured(case, tuple(shots[case.name]), held[case.name]) for case in wanted]


def ask_of(case: Case, data: Data, server: Server) -> Ask:
    """Sends each variant of a request once, compares answers with numpy's, and returns the requests to load with."""
    requests = data.requests(case.workload)
    path = case.path or case.wire.path(case.workload)
    plain = [case.wire.encode(case.workload, inputs) for inputs in requests]
    is_grpc = case.wire.is_grpc
    sent = [case.mode.encoded(encoded, is_grpc=is_grpc) for encoded in plain]
    answers = (_call_grpc if is_grpc else _call_http)(server.ports[case.wire.port], path, case.mode, plain, sent)
    sizes = []
    for inputs, (nbytes, body, headers) in zip(requests, answers, strict=True):
        sizes.append(nbytes)
        # A baseline server answers each request with the right answer to the first variant of the workload's request.
        wanted = data.expected(case.workload, requests[0] if case.is_constant else inputs)
        found: Arrays = case.wire.decode(body, headers)
        try:
            check(found, wanted, exact=case.workload != "W5")
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}") from error
    bodies, headers = zip(*sent, strict=True)
    return Ask(is_grpc, path, bodies, sizes, headers, is_gzipped=case.mode.gzips, is_tls=case.mode.is_tls)


# Number of bytes of an answer as it was sent, the answer, and its headers.
_Answers = Iterator[tuple[int, bytes, dict[str, str]]]


def _call_grpc(port: int, path: str, mode: Mode, plain: list[Encoded], _sent: list[Encoded]) -> _Answers:
    options = [("grpc.max_receive_message_length", -1), ("grpc.ssl_target_name_override", "localhost")]
    address = f"127.0.0.1:{port}"
    if mode.is_tls:
        certificate = ssl.get_server_certificate(("127.0.0.1", port)).encode()
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate), options)
    else:
        channel = grpc.insecure_channel(address, options)
    with channel:
        method = channel.unary_unary(path)
        compression = grpc.Compression.Gzip if mode.gzips else None
        for body, _ in plain:
            answer = method(body, timeout=60, metadata=mode.headers, compression=compression)
            yield len(answer), answer, {}


def _call_http(port: int, path: str, mode: Mode, _plain: list[Encoded], sent: list[Encoded]) -> _Answers:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if mode.is_tls:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=client_context())
    try:
        for body, headers in sent:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise AssertionError(f"{path} answered {answer.status}: {content[:200]!r}")
            is_gzipped = answer.getheader("content-encoding") == "gzip"
            fields = {name.lower(): value for name, value in answer.getheaders()}
            yield len(content), gzip.decompress(content) if is_gzipped else content, fields
    finally:
        connection.close()
