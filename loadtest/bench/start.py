"""Measures the time from a server's start to its first answer, with 10 GB of tables and with tiny tables, in turns."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.cases import NO_POLLS
from loadtest.bench.models import TABLES, large_request, prepared, write_large_model
from loadtest.bench.workloads import LOOKUP, MODEL, TINY
from loadtest.live_server import Held, LiveServer, cpu_s, exchange

AT_MOST_S = 1.0
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds from each start of a server to its first answer, and the memory that the server then held.

    small_cpu_s, large_cpu_s: processor time until the first answer, which varies less on a busy machine.
    """

    small_s: tuple[float, ...]
    large_s: tuple[float, ...]
    small_cpu_s: tuple[float, ...]
    large_cpu_s: tuple[float, ...]
    held: Held

    @property
    def more_s(self) -> float:
        """The extra seconds for 10 GB of tables: the median of the differences between large and tiny tables."""
        return statistics.median(b - a for a, b in zip(self.small_s, self.large_s, strict=True))

    def row(self) -> str:
        small_s, large_s = statistics.median(self.small_s), statistics.median(self.large_s)
        cpu_s = f"{statistics.median(self.large_cpu_s):.2f}, {statistics.median(self.small_cpu_s):.2f}"
        then = f"{large_s:.2f}, {small_s:.2f}; of processor time {cpu_s}; then {self.held.private_mib:.0f} MiB private"
        word = "met" if self.more_s <= AT_MOST_S else "NOT MET"
        return (
            f"| 10 GB of tables, start to first answer: seconds over a small model's | at most {AT_MOST_S:g} "
            f"| {self.more_s:.2f} ({then}) | {word} |"
        )


def measure_starts(folder: Path, rounds: int) -> Starts:
    """Measures server starts with large and with tiny tables in turns; raises AssertionError for a wrong answer."""
    models = prepared(folder / "tiny" / "models", "tiny")
    small, large = folder / "start_small", folder / "start_large"
    for target, tables in ((small, TINY.tables), (large, TABLES)):
        if not (target / "1").exists():
            write_large_model(models / "model" / "1", target / "1", tables)
    rows = [(*_first_answer(small, TINY.tables)[:2], *_first_answer(large, TABLES)) for _ in range(rounds)]
    small_s, small_cpu_s, large_s, large_cpu_s, held = zip(*rows, strict=True)
    return Starts(small_s, large_s, small_cpu_s, large_cpu_s, held[-1])


def _first_answer(base: Path, tables: Any) -> tuple[float, float, Held]:
    features, expected = large_request(tables)
    body = json.dumps({"features": features}).encode()
    where = (f"--model_name={MODEL}", f"--model_base_path={base}", "--graph_signatures=off")
    started_s = time.perf_counter()
    with LiveServer(NO_POLLS, *where) as server:
        while True:
            status, answer = exchange(server.http, f"/v1/models/{MODEL}:{LOOKUP}", body, timeout_s=_PATIENCE_S)
            seconds, used_s = time.perf_counter() - started_s, cpu_s(server.pid)
            if status == 200 or seconds > _PATIENCE_S:
                break
            time.sleep(0.002)
        if status != 200:
            raise AssertionError(f"no answer after {seconds:.0f} s: {status} {answer!r}")
        found = json.loads(answer)["embeddings"]
        for name, rows in expected.items():
            np.testing.assert_array_equal(np.array(found[name], np.float32), rows)
        return seconds, used_s, server.held()
