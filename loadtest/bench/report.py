"""Writes the benchmark's measurements as Markdown tables and as JSON."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.cases import RATIOS, Ratio
from loadtest.bench.rounds import Measured
from loadtest.bench.workloads import WORKLOADS
from loadtest.live_server import ROOT, header, row

BEGIN, END = "<!-- begin: written by `make bench` -->", "<!-- end -->"


def median(measured: Measured, what: str) -> float:
    """Returns the median of one figure (a field of Shot) over the rounds of a case."""
    return statistics.median(getattr(shot, what) for shot in measured.shots)


def tables(measured: Sequence[Measured], extra: Sequence[str] = ()) -> str:
    """Returns the rates and their ratios as Markdown tables; extra: lines to append to the table of ratios."""
    by_name = {m.case.name: m for m in measured}
    rows = list(dict.fromkeys(m.case.row for m in measured))
    lines = [header("requests/s", *WORKLOADS)]
    for name in rows:
        found = [by_name.get(f"{name}/{workload}") for workload in WORKLOADS]
        lines.append(row(name, *(f"{median(m, 'requests_per_s'):,.0f}" if m else "" for m in found)))
    lines += ["", header("ratio", "at least", "measured", "")]
    for ratio in RATIOS:
        value = ratio_of(ratio, by_name)
        if value is not None:
            word = "met" if value >= ratio.at_least else "NOT MET"
            lines.append(row(f"{ratio.of} over {ratio.over}", ratio.at_least, f"{value:.2f}", word))
    return "\n".join([*lines, *extra])


def costs(measured: Sequence[Measured]) -> str:
    """Returns the times, processor time and memory of each case as a Markdown table, which no document has."""
    names = ("p50 ms", "p99 ms", "server CPU us/request", "spread", "generator's core", "PSS MiB", "private MiB")
    lines = [header("case", *names)]
    for m in measured:
        rates = [shot.requests_per_s for shot in m.shots]
        spread = (max(rates) - min(rates)) / statistics.median(rates)
        times = (f"{median(m, 'p50_ms'):.3g}", f"{median(m, 'p99_ms'):.3g}", f"{median(m, 'server_cpu_us'):.1f}")
        memory = (f"{m.held.pss_mib:.0f}", f"{m.held.private_mib:.0f}")
        lines.append(row(m.case.name, *times, f"{spread:.0%}", f"{median(m, 'busy'):.0%}", *memory))
    return "\n".join(lines)


def ratio_of(ratio: Ratio, by_name: dict[str, Measured]) -> float | None:
    """Returns the median over all rounds of the ratio of two cases' rates; None if one case was not measured."""
    sides = [by_name.get(ratio.of), by_name.get(ratio.over)]
    if sides[0] is None or sides[1] is None:
        return None
    pairs = zip(sides[0].shots, sides[1].shots, strict=True)
    return statistics.median(a.requests_per_s / b.requests_per_s for a, b in pairs)


def document(measured: Sequence[Measured], **more: Any) -> dict[str, Any]:
    by_name = {m.case.name: m for m in measured}
    return {
        "commit": commit(),
        "machine": machine(),
        "cases": {
            m.case.name: {
                "rounds": [dataclasses.asdict(shot) for shot in m.shots],
                "pss_mib": m.held.pss_mib,
                "private_mib": m.held.private_mib,
            }
            for m in measured
        },
        "ratios": [{**dataclasses.asdict(ratio), "measured": ratio_of(ratio, by_name)} for ratio in RATIOS],
        **more,
    }


def commit() -> str:
    """Returns the short hash of the commit whose server was measured."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """Describes the machine by its processor, cores and Python version, without its host name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = [*models, platform.machine()][0]
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}


def headline(rounds: int, seconds: float, connections: int) -> str:
    """Returns a sentence on how the figures were measured: commit, machine, rounds, seconds and connections."""
    found = machine()
    return (
        f"Commit {commit()}, {found['cores']} cores ({found['processor']}), Python {found['python']}; medians of "
        f"{rounds} rounds of {seconds:g} s, {connections} connections."
    )


def write_into(document_file: Path, text: str) -> None:
    """Replaces the text between two marker lines of a document; raises ValueError if a marker is missing."""
    before, begin, rest = document_file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document_file} has no markers for the measurements")
    document_file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
