"""Writes the table rows and the picture of loadtest.bench.overload's results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.charts import Series, line_chart

HEAD = (
    "| work | asked, x capacity | capacity/s | goodput / capacity | connection threads us/request | answers p99 ms "
    "| refusals p50, p99 ms | health gRPC, HTTP p99 ms | one row p99 ms | recovered s | failed |\n"
    + "|---" * 11
    + "|\n"
)


@dataclass
class Waits:
    """Response times of requests that a client sent at fixed times beside a load.

    seconds: times of answers. refused_s: times of refusals. failed: number of requests that got neither.
    """

    seconds: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """One load that was put on a server, and the figures measured under this load.

    capacity, goodput: answers a second. connection_us: processor time of the threads that serve connections, for each
      request that was answered or refused; unlike rates, it hardly depends on what else the machine does.
    same, light, grpc_health, http_health: requests of the same kind, of one row, and for health, beside the load.
    """

    kind: str
    factor: float
    capacity: float
    goodput: float
    connection_us: float
    same: Waits
    light: Waits
    grpc_health: Waits
    http_health: Waits
    recovered_s: float

    def row(self) -> str:
        """Returns the figures measured under this load as a row of a Markdown table."""
        probes = (self.same, self.light, self.grpc_health, self.http_health)
        failed = sum(one.failed for one in probes) + len(self.grpc_health.refused_s) + len(self.light.refused_s)
        return (
            f"| {self.kind} | {self.factor:g} | {self.capacity:.0f} | {self.goodput / self.capacity:.2f} "
            f"| {self.connection_us:.1f} | {_p99(self.same.seconds)} "
            f"| {_p50(self.same.refused_s)}, {_p99(self.same.refused_s)} "
            f"| {_p99(self.grpc_health.seconds)}, {_p99(self.http_health.seconds)} "
            f"| {_p99(self.light.seconds)} | {self.recovered_s:.2f} | {failed} |\n"
        )


def picture(loads: Sequence[Load]) -> str:
    """Draws each request kind's goodput against the load as SVG; both are multiples of the kind's capacity."""
    names = dict.fromkeys(load.kind for load in loads)
    series = [
        Series(name, sorted((load.factor, load.goodput / load.capacity) for load in loads if load.kind == name))
        for name in names
    ]
    return line_chart("goodput against load; capacity is 1", series, x_label="asked, x capacity")


def _p50(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f}" if seconds else "-"


def _p99(seconds: list[float]) -> str:
    return f"{sorted(seconds)[int(len(seconds) * 0.99)] * 1e3:.1f}" if seconds else "-"
