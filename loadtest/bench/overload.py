"""Overloads a server with requests at a fixed rate; measures answers, refusals, and other clients' response times.

h2load sends each kind of work at 1.5, 3 and 10 times the measured capacity. The server's metrics count its answers.
Meanwhile other clients send requests at fixed times: health checks, a lookup of one row, and the same work. Linux;
h2load must be installed.

python -m loadtest.bench.overload                      all kinds, 6 s each
python -m loadtest.bench.overload --seconds 30 --only tower
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.bench.artifact import prepared
from loadtest.bench.generator import LoadError, framed, h2load
from loadtest.bench.messages import GRPC, GRPC_KEYS
from loadtest.bench.overload_report import HEAD, Load, Waits, picture
from loadtest.bench.processes import Service, bound_to
from loadtest.bench.workloads import FULL, MODEL, Data
from loadtest.live_server import ROOT
from loadtest.slow_model import write_slow_model
from loadtest.wire import PREDICT_METHOD, message_classes

_CONFIG = """model_config_list {
  config { name: "%s" base_path: "%s" model_platform: "tensorflow" }
  config { name: "%s" base_path: "%s" model_platform: "tensorflow" }
  config { name: "%s" base_path: "%s" model_platform: "tensorflow" }
}
"""
_ANSWERED = re.compile(r'^embedding_server_requests_total\{[^}]*code="OK"[^}]*\} (\S+)', re.MULTILINE)
_REFUSED = re.compile(r"^embedding_server_refused_total\{[^}]*\} (\S+)", re.MULTILINE)
# The name of the native core's threads that serve connections.
_CONNECTION_THREAD = "edge"
# Number of clients that measure the server's capacity, each with one request in flight: so few that the server refuses
# none.
_CLIENTS = 8
_CONNECTIONS = 16
_PROBES_PER_S = 50
_GIVE_UP_S = 5.0
# Number of consecutive answers after which a server counts as recovered from the overload.
_IN_A_ROW = 10


class Probe(Waits):
    """The results of requests that a client sends at fixed times."""

    def ask(self, call: Callable[[], object]) -> bool:
        """Sends one request and records the time to its answer or refusal; returns whether the server answered it."""
        begun_s = time.perf_counter()
        try:
            call()
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                self.refused_s.append(time.perf_counter() - begun_s)
            else:
                self.failed += 1
            return False
        except OSError:
            self.failed += 1
            return False
        self.seconds.append(time.perf_counter() - begun_s)
        return True


class Counts(NamedTuple):
    """Counts of a server: requests answered; requests ended (answered or refused); time of its connection threads."""

    answered: float
    ended: float
    connection_s: float


class Target:
    """A server under load, to which any thread can send single requests: gRPC on one connection, HTTP on new ones."""

    def __init__(self, service: Service) -> None:
        self.light, self._pid = light(), service.pid
        self.grpc_port, self._http_port = service.port(is_grpc=True), service.port(is_grpc=False)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        self._predict = self._channel.unary_unary(PREDICT_METHOD)
        self._health = health_pb2_grpc.HealthStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Closes the connections."""
        self._channel.close()

    def ask(self, kind: Kind) -> bytes:
        """Sends one predict request of the given kind over gRPC, and returns the answer's bytes."""
        return bytes(self._predict(kind.message, timeout=_GIVE_UP_S))

    def check_grpc(self) -> None:
        """Calls the server's gRPC health service."""
        self._health.Check(health_pb2.HealthCheckRequest(), timeout=_GIVE_UP_S)

    def check_http(self) -> None:
        """Requests /readyz over HTTP on a new connection, as Kubernetes does; raises OSError if it is not ready."""
        if self._get("/readyz")[0] != 200:
            raise OSError("not ready")

    def counts(self) -> Counts:
        """Reads how many requests the server answered and refused, and the time that its connection threads used."""
        text = self._get("/metrics")[1]
        answered, refused = (sum(map(float, pattern.findall(text))) for pattern in (_ANSWERED, _REFUSED))
        return Counts(answered, answered + refused, self._connection_s())

    def _connection_s(self) -> float:
        threads = Path(f"/proc/{self._pid}/task").iterdir()
        edge = [thread for thread in threads if (thread / "comm").read_text().strip() == _CONNECTION_THREAD]
        # The first number in schedstat is the time, in nanoseconds, for which the thread ran.
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in edge) / 1e9

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=_GIVE_UP_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def main(arguments: list[str] | None = None) -> int:
    """Measures a server under overload, and prints a table; returns 0, whatever the figures are."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.5, 3.0, 10.0])
    parser.add_argument("--only", action="append", metavar="KIND")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--picture", type=Path, help="where to write an SVG of the goodput")
    parser.add_argument("flags", nargs="*", help="the server's, behind --")
    options = parser.parse_args(arguments)
    models = options.folder / "full" / "models"
    models.mkdir(parents=True, exist_ok=True)
    prepared(models, "full", ("model", "model_keys"))
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_slow_model(folder / "graph" / "1", 20)
        config = folder / "models.config"
        config.write_text(_CONFIG % (MODEL, models / "model", KEYS, models / "model_keys", GRAPH, folder / "graph"))
        flags = [f"--model_config_file={config}", "--version_settle_s=0", *options.flags]
        service = Service(frozenset(cores[:1]), flags)
        try:
            service.wait()
            with bound_to(frozenset(cores[-1:])):
                target = Target(service)
                sys.stdout.write(HEAD)
                loads = []
                for kind in kinds():
                    if options.only is None or kind.name in options.only:
                        loads += _measure(target, kind, folder, options)
                target.close()
        except LoadError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        finally:
            service.stop()
    if options.picture:
        options.picture.write_text(picture(loads))
    return 0


def _measure(target: Target, kind: Kind, folder: Path, options: argparse.Namespace) -> Iterator[Load]:
    """Measures one kind of request at each load, and yields the figures of each load."""
    body = folder / "body"
    body.write_bytes(framed(kind.message))
    url = f"http://127.0.0.1:{target.grpc_port}{PREDICT_METHOD}"

    def command(connections: int, streams: int) -> list[str]:
        return h2load(url, body, is_grpc=True, headers={}, connections=connections, streams=streams)

    target.ask(kind)
    # The first load is not measured: during it, the server learns the cost of this kind of request.
    closed_loop = command(_CLIENTS, 1)
    _loaded(target, closed_loop, 1.0)
    quiet, _ = _loaded(target, closed_loop, options.seconds / 2)
    for factor in options.factors:
        per_client = max(round(quiet * factor / _CONNECTIONS), 1)
        # h2load gets a nice value, so that it does not slow the clients that send at fixed times.
        loaded = ["nice", "-n19", *command(_CONNECTIONS, 1000), f"--rps={per_client}"]
        probes = [Probe(), Probe(), Probe(), Probe()]
        calls: list[Callable[[], object]] = [
            target.check_grpc,
            target.check_http,
            lambda: target.ask(target.light),
            lambda: target.ask(kind),
        ]
        is_over = threading.Event()
        threads = [
            threading.Thread(target=_ask_at_times, args=pair) for pair in zip(probes, calls, [is_over] * 4, strict=True)
        ]
        for thread in threads:
            thread.start()
        goodput, connection_us = _loaded(target, loaded, options.seconds)
        recovered_s = _recovery(target, kind)
        is_over.set()
        for thread in threads:
            thread.join()
        grpc_health, http_health, light_waits, same = probes
        load = Load(
            kind.name,
            factor,
            quiet,
            goodput,
            connection_us,
            same=same,
            light=light_waits,
            grpc_health=grpc_health,
            http_health=http_health,
            recovered_s=recovered_s,
        )
        sys.stdout.write(load.row())
        sys.stdout.flush()
        yield load


def _loaded(target: Target, command: Sequence[str], seconds: float) -> tuple[float, float]:
    """Runs h2load; returns answers per second, and microseconds of the connection threads per answer or refusal."""
    process = subprocess.Popen(
        [*command, f"--duration={math.ceil(seconds + 1)}", "--warm-up-time=0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.5)
        before, before_s = target.counts(), time.perf_counter()
        time.sleep(seconds)
        after, after_s = target.counts(), time.perf_counter()
    finally:
        process.terminate()
        process.wait()
    answered, ended = after.answered - before.answered, after.ended - before.ended
    return answered / (after_s - before_s), (after.connection_s - before.connection_s) * 1e6 / max(ended, 1)


def _ask_at_times(probe: Probe, call: Callable[[], object], is_over: threading.Event) -> None:
    with ThreadPoolExecutor(16) as pool:
        while not is_over.wait(1 / _PROBES_PER_S):
            pool.submit(probe.ask, call)


def _recovery(target: Target, kind: Kind) -> float:
    """Returns the seconds until the server has recovered: until the first of ten consecutive answers."""
    begun_s = first_s = time.perf_counter()
    probe, in_a_row = Probe(), 0
    while in_a_row < _IN_A_ROW and time.perf_counter() - begun_s < 2 * _GIVE_UP_S:
        in_a_row = in_a_row + 1 if probe.ask(lambda: target.ask(kind)) else 0
        if in_a_row == 1:
            first_s = time.perf_counter()
    return first_s - begun_s


# Names of two models that are served beside the benchmark's own: one has string keys, the graph of the other runs
# whole.
KEYS, GRAPH = "keys", "graph"
# A field that PredictRequest does not have: protobuf ignores it, and the core forwards the request for it.
UNKNOWN_FIELD = b"\x78\x01"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request."""

    name: str
    message: bytes


def light() -> Kind:
    """Returns a lookup of one row, which a client sends at fixed times beside each load."""
    return Kind("lookup", GRPC.encode("W1", Data(FULL).requests("W1")[0])[0])


def kinds() -> list[Kind]:
    """Returns all kinds of requests that the benchmark measures."""
    data = Data(FULL)

    def message(workload: str) -> bytes:
        return GRPC.encode(workload, data.requests(workload)[0])[0]

    keys = message_classes()[0].FromString(GRPC_KEYS.encode("W2", data.requests("W2")[0])[0])
    keys.model_spec.name = KEYS
    graph = message_classes()[0]()
    graph.model_spec.name = GRAPH
    tensor = graph.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add().size = 1
    tensor.float_val.append(3.0)
    return [
        light(),
        Kind("batch", message("W2")),
        Kind("strings", keys.SerializeToString()),
        Kind("large", message("W3")),
        Kind("tower", message("W5")),
        Kind("forwarded", message("W2") + UNKNOWN_FIELD),
        Kind("graph", graph.SerializeToString()),
    ]


if __name__ == "__main__":
    sys.exit(main())
