"""Measures predicts over tables in a real cluster against predicts over mapped tables, by turns, with equal requests.

    python -m loadtest.bench.remote_predicts --before ../before

The model is a DLRM of eight tables (tests/tower_zoo.py) in three primaries on loopback. Each server runs alone in its
turns; the others wait. `--before` names a checkout of an older commit, with its own core, whose server reads the same
cluster. Before the measurement, the answers of all servers are compared byte by byte.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf

from loadtest.bench.generator.load import Ask, Shot, drive
from loadtest.bench.lookup_vs_graph import machine
from loadtest.bench.processes import Service, cpu_s, tree
from loadtest.live_server import ROOT
from loadtest.remote_reads import server_cpu_s
from loadtest.wire import DT_FLOAT, DT_INT64, PREDICT_METHOD, message_classes
from model_export.remote.push import push
from service.remote.address import StoreAddress
from tests.tower_zoo import SIGNATURE, ZOO, Request, write_zoo_model
from tests.valkey_cluster import Cluster

_MODEL, _ZOO_MODEL = "dlrm", "dlrm"
_NUM_REQUESTS = 200
_HEAD = """
| Rows a request | Server | requests/s | CPU us of the server a request | CPU us of the nodes | p50 ms | p99 ms |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Prints a line for each size of requests and each server: medians of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an older commit, with its core built")
    parser.add_argument("--table_rows", type=int, default=50_000, help="of each of the eight tables")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        version = write_zoo_model(tf, _ZOO_MODEL, folder / _MODEL, options.table_rows)
        cluster = stack.enter_context(Cluster(folder / "nodes", 3))
        pushed = push(version, StoreAddress.parse(cluster.address), model=_MODEL)
        address = cluster.address + "?timeout_ms=60000&node_timeout_ms=30000"
        remote = ["--remote_tables=" + ";".join(f"{one.table}={address}" for one in pushed)]
        started = {
            "mapped": ([], ROOT),
            "remote": (remote, ROOT),
            "remote, all rows cached": ([*remote, "--remote_cache_bytes=1000000000"], ROOT),
            **({"remote, before": (remote, options.before.resolve())} if options.before else {}),
        }
        cores = frozenset(os.sched_getaffinity(0))
        base = [f"--model_name={_MODEL}", f"--model_base_path={version.parent}", "--data_plane=core"]
        services = {name: Service(cores, [*base, *flags], root) for name, (flags, root) in started.items()}
        for service in services.values():
            stack.callback(service.stop)
            service.wait()
        _tell(f"{machine()}\n{options.connections} connections{_HEAD}")
        for rows in options.rows:
            _measure(services, cluster, rows, options)


def _measure(services: dict[str, Service], cluster: Cluster, rows: int, options: argparse.Namespace) -> None:
    random = np.random.default_rng(rows)
    requests = [ZOO[_ZOO_MODEL].request(rows, options.table_rows, random) for _ in range(_NUM_REQUESTS)]
    bodies = [_body(inputs) for inputs in requests]
    answers = {name: _answers(service, bodies) for name, service in services.items()}
    for name, found in answers.items():
        if found != answers["mapped"]:
            raise RuntimeError(f"server {name!r} gives other answers than from mapped tables")
    ask = Ask(True, PREDICT_METHOD, bodies, [len(one) for one in answers["mapped"]], [()] * len(bodies))
    shots: dict[str, list[Shot]] = {name: [] for name in services}
    nodes_us: dict[str, list[float]] = {name: [] for name in services}
    for _ in range(options.rounds):
        for name, service in services.items():
            pids, nodes_s = tree(service.pid), server_cpu_s(cluster)
            shot = drive(
                ask,
                service.port(is_grpc=True),
                connections=options.connections,
                seconds=options.seconds,
                warm_s=0.0,
                server_cpu_s=lambda pids=pids: cpu_s(pids),
            )
            shots[name].append(shot)
            nodes_us[name].append((server_cpu_s(cluster) - nodes_s) / max(shot.requests, 1) * 1e6)
    for name, found in shots.items():
        rate, used, p50, p99 = (
            statistics.median(getattr(shot, figure) for shot in found)
            for figure in ("requests_per_s", "server_cpu_us", "p50_ms", "p99_ms")
        )
        nodes = statistics.median(nodes_us[name])
        _tell(f"| {rows} | {name} | {rate:,.0f} | {used:,.0f} | {nodes:,.0f} | {p50:.1f} | {p99:.1f} |")
    _tell(f"load average {os.getloadavg()[0]:.1f}")


def _body(inputs: Request) -> bytes:
    request = message_classes()[0]()
    request.model_spec.name, request.model_spec.signature_name = _MODEL, SIGNATURE
    for name, array in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = DT_FLOAT if array.dtype == np.float32 else DT_INT64
        tensor.tensor_content = array.tobytes()
        for size in array.shape:
            tensor.tensor_shape.dim.add().size = size
    return bytes(request.SerializeToString())


def _answers(service: Service, bodies: list[bytes]) -> list[bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{service.port(is_grpc=True)}") as channel:
        call = channel.unary_unary(PREDICT_METHOD)
        return [call(body, timeout=60) for body in bodies]


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
