"""Measures the cost of sampling the ids of lookups: two servers in turn, with and without --hot_rows.

python -m loadtest.bench.hot_rows                  the lookups of the benchmark (W1, W2, W3, W4) over gRPC
python -m loadtest.bench.hot_rows --rounds 20 --seconds 2

Both servers have one thread on one core, the generator has the other cores. The figure is the processor time of a
request in the server; the order of the two servers changes with each round. `spread` is the quartile range of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import urllib.request
from pathlib import Path

from loadtest.bench.artifact import prepared
from loadtest.bench.cases import Case
from loadtest.bench.generator.load import Shot, drive
from loadtest.bench.messages import GRPC
from loadtest.bench.processes import Service, bound_to, cpu_s, tree
from loadtest.bench.rounds import ask_of
from loadtest.bench.workloads import FULL, MODEL, TINY, Data
from loadtest.live_server import ROOT

_WORKLOADS = ("W1", "W2", "W3", "W4")
_CONNECTIONS = 8


def main(arguments: list[str] | None = None) -> int:
    """Measures servers with and without sampling of ids, and prints a table; returns 0 for any figures."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.hot_rows",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(arguments)
    size = "tiny" if options.tiny else "full"
    folder = options.folder / size / "models"
    folder.mkdir(parents=True, exist_ok=True)
    prepared(folder, size)
    data = Data(TINY if options.tiny else FULL)
    first, *others = sorted(os.sched_getaffinity(0))
    where = (f"--model_name={MODEL}", f"--model_base_path={folder / 'model'}", "--data_plane=core", "--threads=1")
    servers = {
        name: Service(frozenset({first}), (*where, "--graph_signatures=off", f"--hot_rows={name}"))
        for name in ("false", "true")
    }
    shots: dict[tuple[str, str], list[Shot]] = {}
    try:
        for server in servers.values():
            server.wait()
        with bound_to(frozenset(others or {first})):
            for turn in range(options.rounds):
                for workload in _WORKLOADS:
                    for name in list(servers)[:: 1 if turn % 2 else -1]:
                        shots.setdefault((workload, name), []).append(
                            _measure(servers[name], workload, data, options.seconds)
                        )
        sys.stdout.write(_table(shots) + _hot(servers["true"]))
    finally:
        for server in servers.values():
            server.stop()
    return 0


def _measure(server: Service, workload: str, data: Data, seconds: float) -> Shot:
    asked = ask_of(Case("hot rows", workload, "service", GRPC), data, server)
    processes = tree(server.pid)
    return drive(
        asked,
        server.port(is_grpc=True),
        connections=_CONNECTIONS,
        seconds=seconds,
        warm_s=0.2,
        server_cpu_s=lambda: cpu_s(processes),
    )


def _table(shots: dict[tuple[str, str], list[Shot]]) -> str:
    lines = ["| lookup | us without | us with | ratio | spread | requests/s, ratio |", "|---|---|---|---|---|---|"]
    for workload in _WORKLOADS:
        pairs = list(zip(shots[workload, "false"], shots[workload, "true"], strict=True))
        without, sampled = (statistics.median(pair[side].server_cpu_us for pair in pairs) for side in (0, 1))
        ratios = [b.server_cpu_us / a.server_cpu_us for a, b in pairs]
        rate = statistics.median(b.requests_per_s / a.requests_per_s for a, b in pairs)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        ratio = statistics.median(ratios)
        lines.append(
            f"| {workload} | {without:.2f} | {sampled:.2f} | {ratio:.4f} | {low:.4f} to {high:.4f} | {rate:.4f} |"
        )
    return "\n".join(lines) + "\n"


def _hot(server: Service) -> str:
    """Returns the hottest rows of table `user`, which show that the server did sample."""
    port = server.port(is_grpc=False)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/{MODEL}/tables/user:hot?k=3") as answer:
        found = json.load(answer)
    return (
        f"table user: {found['sampled']} ids sampled, hottest {[(row['id'], row['share']) for row in found['rows']]}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
