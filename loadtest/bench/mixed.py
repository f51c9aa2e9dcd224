"""Measures the latency of one-row lookups while the same server answers larger requests.

python -m loadtest.bench.mixed                    the native core with two threads, and the reference server
python -m loadtest.bench.mixed --seconds 5 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.artifact import prepared
from loadtest.bench.cases import Case
from loadtest.bench.generator.load import Ask, Shot, drive
from loadtest.bench.messages import GRPC, JSON
from loadtest.bench.processes import Service
from loadtest.bench.rounds import ask_of
from loadtest.bench.workloads import FULL, MODEL, TINY, Data
from loadtest.live_server import ROOT

_CONNECTIONS = 8
# The largest p50 and the largest p99 of one-row lookups while the server also answers larger requests, divided by the
# p50 and the p99 of such lookups alone.
_MOST_P50, _MOST_P99 = 1.5, 3.0


@dataclass(frozen=True, slots=True)
class Beside:
    """Larger requests that a server answers beside the measured lookups. connections: each has one call in flight."""

    name: str
    case: Case | None = None
    connections: int = 0


_WORK = (
    Beside("alone"),
    Beside("one W3", Case("beside", "W3", "service", GRPC), 1),
    Beside("four W3", Case("beside", "W3", "service", GRPC), 4),
    Beside("four W5", Case("beside", "W5", "service", GRPC), 4),
    Beside("32 JSON W2", Case("beside", "W2", "service", JSON), 32),
)
_LOOKUP = Case("lookup", "W1", "service", GRPC)


def main(arguments: list[str] | None = None) -> int:
    """Measures lookups beside larger requests, and prints a table; returns the exit status, 0 for any figures."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.mixed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(arguments)
    size = "tiny" if options.tiny else "full"
    folder = options.folder / size / "models"
    folder.mkdir(parents=True, exist_ok=True)
    prepared(folder, size)
    data = Data(TINY if options.tiny else FULL)
    where = (f"--model_name={MODEL}", f"--model_base_path={folder / 'model'}", "--max_queue_ms=60000")
    everything = frozenset(os.sched_getaffinity(0))
    servers = {
        "core": Service(everything, (*where, "--data_plane=core", "--threads=2")),
        "reference": Service(everything, (*where, "--data_plane=reference")),
    }
    shots: dict[tuple[str, str], list[Shot]] = {}
    try:
        for server in servers.values():
            server.wait()
        for _ in range(options.rounds):
            for name, server in servers.items():
                for work in _WORK:
                    shot = _measure(server, work, data, options.seconds)
                    shots.setdefault((name, work.name), []).append(shot)
    finally:
        for server in servers.values():
            server.stop()
    sys.stdout.write(_table(shots))
    return 0


def _measure(server: Service, work: Beside, data: Data, seconds: float) -> Shot:
    lookups = ask_of(_LOOKUP, data, server)
    with _under_way(server, work, data):
        return _drive(server, lookups, is_grpc=True, connections=_CONNECTIONS, seconds=seconds)


@contextmanager
def _under_way(server: Service, work: Beside, data: Data) -> Iterator[None]:
    if work.case is None:
        yield
        return
    case = work.case
    asked = ask_of(case, data, server)
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            _drive(server, asked, is_grpc=case.wire.is_grpc, connections=work.connections, seconds=0.5)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _drive(server: Service, asked: Ask, *, is_grpc: bool, connections: int, seconds: float) -> Shot:
    port = server.port(is_grpc=is_grpc)
    return drive(asked, port, connections=connections, seconds=seconds, warm_s=0.2, server_cpu_s=lambda: 0.0)


def _table(shots: dict[tuple[str, str], list[Shot]]) -> str:
    lines = ["| data plane | beside | p50 us | p99 us | p50 / alone | p99 / alone |", "|---|---|---|---|---|---|"]
    for (name, work), some in shots.items():
        p50, p99 = (statistics.median(getattr(shot, of) for shot in some) for of in ("p50_ms", "p99_ms"))
        alone = shots[name, "alone"]
        p50_alone, p99_alone = (statistics.median(getattr(shot, of) for shot in alone) for of in ("p50_ms", "p99_ms"))
        ratios = f"{p50 / p50_alone:.2f} | {p99 / p99_alone:.2f}"
        lines.append(f"| {name} | {work} | {p50 * 1e3:.0f} | {p99 * 1e3:.0f} | {ratios} |")
    return "\n".join([*lines, "", f"wanted: at most {_MOST_P50} and {_MOST_P99}", ""])


if __name__ == "__main__":
    sys.exit(main())
