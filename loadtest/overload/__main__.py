"""Measures goodput under overload: finds a server's capacity in a closed loop, then sends 0.5 to 4 times that load.

The server runs a SavedModel that takes some milliseconds, on loopback and bound to the first core; this generator is
bound to the last. Requests are sent at random times, without waiting for earlier ones; clients give up after
--timeout_s. A second model gets occasional requests during the flood. Prints a table, and writes a picture.

    python -m loadtest.overload --picture docs/overload.svg
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from loadtest.bench.processes import Service, bound_to
from loadtest.charts import Series, line_chart, stacked
from loadtest.overload.rounds import Round, capacity, offer
from loadtest.overload.slow_model import write_slow_model
from loadtest.overload.wires import GrpcWire, HttpWire, Wire

_CONFIG = """model_config_list {
  config { name: "flooded" base_path: "%s" model_platform: "tensorflow" }
  config { name: "other" base_path: "%s" model_platform: "tensorflow" }
}
"""
# Requests per second to model "other", while model "flooded" is flooded.
_OTHER_PER_S = 4.0


def main() -> None:
    """Measures overload over HTTP and over gRPC, and prints a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wire", choices=["http", "grpc"], nargs="+", default=["http", "grpc"])
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--clients", type=int, default=8, help="of the closed loop")
    parser.add_argument("--timeout_s", type=float, default=1.0)
    parser.add_argument("--layers", type=int, default=20, help="of the model: what a request costs")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("flags", nargs="*", help="the server's, behind --")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_slow_model(model / "1", options.layers)
        config = Path(folder) / "models.config"
        config.write_text(_CONFIG % (model, model))
        service = Service(
            frozenset(cores[:1]), [f"--model_config_file={config}", "--version_settle_s=0", *options.flags]
        )
        try:
            service.wait()
            with bound_to(frozenset(cores[-1:])):
                charts = [
                    asyncio.run(_curve(name, service.port(is_grpc=name == "grpc"), options)) for name in options.wire
                ]
        finally:
            service.stop()
    if options.picture:
        options.picture.write_text(stacked(charts))


async def _curve(name: str, port: int, options: argparse.Namespace) -> str:
    wire: Wire = HttpWire(port) if name == "http" else GrpcWire(f"127.0.0.1:{port}")
    _print(f"\n{name}, clients give up after {options.timeout_s:g} s\n")
    _print("| asked, x capacity | capacity/s | offered/s | goodput/s | of capacity | refused/s | late or failed ")
    _print("| answers p50, p99 ms | refusals p50, p99 ms | other model p50, p99 ms |\n" + "|---" * 10 + "|\n")
    rounds = []
    before = await _capacity(wire, options)
    for number, factor in enumerate(options.factors):
        common = {"factor": factor, "seconds": options.seconds, "timeout_s": options.timeout_s}
        flood, other = await asyncio.gather(
            offer(wire, "flooded", per_s=factor * before, seed=number, **common),
            offer(wire, "other", per_s=_OTHER_PER_S, seed=1000 + number, **common),
        )
        # The mean of the server's capacity before and after a round counts, because other work on the machine changes
        # during the run.
        after = await _capacity(wire, options)
        rounds.append((flood, other, (before + after) / 2))
        before = after
        _print(_row(*rounds[-1]))
    await wire.close()
    return _chart(name, rounds)


async def _capacity(wire: Wire, options: argparse.Namespace) -> float:
    seconds = options.seconds / 2
    return await capacity(wire, "flooded", clients=options.clients, timeout_s=options.timeout_s, seconds=seconds)


def _row(flood: Round, other: Round, per_s: float) -> str:
    bad = flood.kinds["late"] + flood.kinds["failed"]
    goodput = flood.goodput + other.goodput
    others = f"{other.ok_ms[0]:.0f}, {other.ok_ms[1]:.0f} ({other.kinds['ok']} of {other.kinds.total()})"
    return (
        f"| {flood.factor:g} | {per_s:.0f} | {flood.offered + other.offered:.0f} | {goodput:.0f} "
        f"| {goodput / per_s:.2f} | {flood.refused:.0f} | {bad} | {flood.ok_ms[0]:.0f}, {flood.ok_ms[1]:.0f} "
        f"| {flood.refused_ms[0]:.1f}, {flood.refused_ms[1]:.1f} | {others} |\n"
    )


def _chart(name: str, rounds: list[tuple[Round, Round, float]]) -> str:
    """Draws goodput and refusals against the offered load, all divided by the capacity measured around each round."""
    points = [
        ((flood.offered + other.offered) / per_s, (flood.goodput + other.goodput) / per_s, flood.refused / per_s)
        for flood, other, per_s in rounds
    ]
    points.sort()
    return line_chart(
        f"{name}: answered in time, and refused, against offered; capacity is 1",
        [
            Series("answered", [(offered, answered) for offered, answered, _ in points]),
            Series("refused", [(offered, refused) for offered, _, refused in points]),
        ],
        x_label="offered",
    )


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
