"""Measures the time until a server answers with the rows of a delta, by the delta's size.

It changes rows of the table permanently, so use a model that is not in production.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import httpx

_CONNECTIONS = 8


class Table:
    """One table of a running server, read over several connections, so that several threads answer."""

    def __init__(self, url: str, admin_url: str, model: str, table: str, stack: ExitStack) -> None:
        self._admin = stack.enter_context(httpx.Client(base_url=admin_url, timeout=60))
        self._path = f"/v1/models/{model}/tables/{table}"
        self._https = [stack.enter_context(httpx.Client(base_url=url, timeout=60)) for _ in range(_CONNECTIONS)]
        tables = self._https[0].get(f"/v1/models/{model}/tables").raise_for_status().json()["tables"]
        self.info = next(info for info in tables if info["name"] == table)
        self._random = random.Random(1)

    def change(self, count: int, value: float) -> tuple[float, float]:
        """Upserts a value into `count` rows; returns seconds until the answer, and until all connections read it."""
        ids = self._random.sample(range(self.info["vocabulary_size"]), count)
        row = [value] * self.info["embedding_dim"]
        body: dict[str, Any] = {"ids": ids, "rows": [row] * count}
        started_s = time.perf_counter()
        self._admin.post(f"{self._path}:upsert", json=body).raise_for_status()
        answered_s = time.perf_counter() - started_s
        for http in self._https:
            while self._first(http, ids[-1]) != value:
                time.sleep(0.002)
        return answered_s, time.perf_counter() - started_s

    def _first(self, http: httpx.Client, row: int) -> float:
        rows = http.post(f"{self._path}:rows", json={"ids": [row]}).raise_for_status().json()["rows"]
        return float(rows[0][0])


def main() -> None:
    """Measures upserts of several sizes, and prints a table of the times until lookups read them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8501")
    parser.add_argument("--admin_url", default="http://127.0.0.1:8502", help="of the server's --admin_port")
    parser.add_argument("--model", default="default")
    parser.add_argument("--table", required=True)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100, 1000, 10_000])
    arguments = parser.parse_args()
    with ExitStack() as stack:
        table = Table(arguments.url, arguments.admin_url, arguments.model, arguments.table, stack)
        sys.stdout.write("rows  answered ms (median, largest)  read on all connections ms (median, largest)\n")
        for count in arguments.rows:
            found = [table.change(count, float(2 + turn)) for turn in range(arguments.times)]
            answered, shown = ([1e3 * second for second in part] for part in zip(*found, strict=True))
            sys.stdout.write(
                f"{count:6} {statistics.median(answered):9.1f} {max(answered):9.1f} "
                f"{statistics.median(shown):9.1f} {max(shown):9.1f}\n"
            )


if __name__ == "__main__":
    main()
