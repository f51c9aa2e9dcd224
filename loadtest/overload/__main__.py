"""Goodput under overload: finds a server's capacity in a closed loop, then offers half of it to four times as much.

A SavedModel that takes some milliseconds is served on loopback, the server bound to the first core and this generator
to the last. Each load is offered at random times, whatever becomes of earlier requests; clients give up after
--timeout_s. A second model is asked once in a while beside the flood. Prints a table, and writes a picture.

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
# Requests a second to the model that nobody floods.
_OTHER_PER_S = 4.0


def main() -> None:
    """Runs the rounds."""
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
    closed = {"clients": options.clients, "timeout_s": options.timeout_s}
    await capacity(wire, "flooded", seconds=1.0, **closed)
    per_s = await capacity(wire, "flooded", seconds=options.seconds, **closed)
    _print(f"\n{name}: capacity {per_s:.0f}/s, clients give up after {options.timeout_s:g} s\n")
    _print("| x capacity | offered/s | goodput/s | of capacity | refused/s | late or failed | answers p50, p99 ms ")
    _print("| refusals p50, p99 ms | other model p50, p99 ms |\n|---|---|---|---|---|---|---|---|---|\n")
    rounds = []
    for number, factor in enumerate(options.factors):
        common = {"factor": factor, "seconds": options.seconds, "timeout_s": options.timeout_s}
        flood, other = await asyncio.gather(
            offer(wire, "flooded", per_s=factor * per_s, seed=number, **common),
            offer(wire, "other", per_s=_OTHER_PER_S, seed=1000 + number, **common),
        )
        rounds.append(flood)
        _print(_row(flood, other, per_s))
    await wire.close()
    return _chart(name, rounds, per_s)


def _row(flood: Round, other: Round, per_s: float) -> str:
    bad = flood.kinds["late"] + flood.kinds["failed"]
    others = f"{other.ok_ms[0]:.0f}, {other.ok_ms[1]:.0f} ({other.kinds['ok']} of {other.kinds.total()})"
    return (
        f"| {flood.factor:g} | {flood.offered:.0f} | {flood.goodput:.0f} | {flood.goodput / per_s:.2f} "
        f"| {flood.refused:.0f} | {bad} | {flood.ok_ms[0]:.0f}, {flood.ok_ms[1]:.0f} "
        f"| {flood.refused_ms[0]:.1f}, {flood.refused_ms[1]:.1f} | {others} |\n"
    )


def _chart(name: str, rounds: list[Round], per_s: float) -> str:
    return line_chart(
        f"{name}: offered against answered in time, requests/s",
        [
            Series("capacity", [(one.offered, per_s) for one in rounds]),
            Series("goodput", [(one.offered, one.goodput) for one in rounds]),
            Series("refused", [(one.offered, one.refused) for one in rounds]),
        ],
        x_label="offered requests/s",
    )


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
