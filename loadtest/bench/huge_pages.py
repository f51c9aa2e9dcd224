"""Measures the cost of reading a row from small and from huge pages, and of lookups while the kernel makes huge pages.

python -m loadtest.bench.huge_pages --gigabytes=2 --folder=DISK

Two files with rows of 64 float32 are written in small pieces, so that they are in the page cache as after a copy. The
pages of one become huge in the way of `--table_pages=auto`, while lookups of 128 rows run. Then the service's kernel
gathers random rows from each file in turn. Needs twice --gigabytes on the disk and in memory; the files are removed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.lookup_vs_graph import machine
from service.native_tables import core_tables
from service.tables.guarded_files import GuardedFiles
from service.tables.huge_pages import HugePages
from service.tables.page_table import huge_bytes

_DIM = 64
_PIECE = 64 << 10
_BESIDE_ROWS, _CALL_ROWS, _CALLS = 128, 4096, 25


class Table:
    """A mapped file of random rows; its pages are read once, so that they are in memory."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        block = memoryview(np.random.default_rng(0).standard_normal(16 << 20, np.float32)).cast("B")
        with path.open("wb", buffering=0) as file:
            for begin in range(0, num_bytes, _PIECE):
                file.write(block[begin % len(block) :][:_PIECE])
        self.files = GuardedFiles()
        self.rows = np.frombuffer(self.files.map(path), np.float32).reshape(-1, _DIM)
        self._place = (0, self.rows.reshape(-1).view(np.uint8), np.empty(0, np.uint8), *self.rows.shape)
        self.read()

    def read(self) -> None:
        """Reads one number of each page, because in a virtual machine the first access to a page is slower."""
        float(self.rows[:: 4096 // (_DIM * 4), 0].sum())

    def gather(self, ids: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> float:
        """Gathers the rows of ids into `out`; returns the seconds that this took."""
        started_s = time.perf_counter()
        core_tables().gather(*self._place, ids, out)
        return time.perf_counter() - started_s


def main() -> None:
    """Measures reads from a table file in small pages and from one in huge pages; prints a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="on the disk to be asked; by default that of temporary files")
    options = parser.parse_args()
    num_bytes = int(options.gigabytes * 2**30) // _PIECE * _PIECE
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        small, huge = (Table(Path(folder) / name, num_bytes) for name in ("small", "huge"))
        _write(machine())
        _write(_made(huge, rng))
        huge.read()
        times: dict[str, list[float]] = {"small": [], "huge": []}
        for _ in range(options.rounds):
            for name, table in (("small", small), ("huge", huge)):
                times[name].append(_turn(table, rng))
        for name, table in (("small", small), ("huge", huge)):
            of_it = f"{(huge_bytes(table.rows) or 0) / num_bytes:.0%} of it huge"
            least, half, most = min(times[name]), statistics.median(times[name]), max(times[name])
            _write(f"{name:5} {half:6.0f} ns a row ({least:.0f} to {most:.0f}); {of_it}")
        ratio = statistics.median(a / b for a, b in zip(times["small"], times["huge"], strict=True))
        _write(f"ratio {ratio:.2f}, the median of {options.rounds} turns")


def _turn(table: Table, rng: np.random.Generator) -> float:
    """Gathers random rows of a table; returns the nanoseconds per row."""
    out = np.empty((_CALL_ROWS, _DIM), np.float32)
    seconds = sum(table.gather(rng.integers(0, len(table.rows), _CALL_ROWS), out) for _ in range(_CALLS))
    return seconds / (_CALLS * _CALL_ROWS) * 1e9


def _made(table: Table, rng: np.random.Generator) -> str:
    """Makes the kernel use huge pages for a table; returns a sentence on how fast lookups were meanwhile."""
    out = np.empty((_BESIDE_ROWS, _DIM), np.float32)

    def looked_up(is_over: Callable[[int], bool]) -> list[float]:
        seconds: list[float] = []
        while not is_over(len(seconds)):
            seconds.append(table.gather(rng.integers(0, len(table.rows), _BESIDE_ROWS), out))
            # A pause between two lookups, because a server does other work between them.
            time.sleep(0.001)
        return seconds

    before = looked_up(lambda count: count >= 1000)
    making = threading.Thread(target=HugePages(is_whole=False).make, args=(table.files,))
    started_s = time.perf_counter()
    making.start()
    beside = looked_up(lambda _: not making.is_alive())
    seconds = time.perf_counter() - started_s
    return (
        f"made in {seconds:.1f} s; lookups of {_BESIDE_ROWS} rows {_tails(before)} before, {_tails(beside)} beside it"
    )


def _tails(seconds: list[float]) -> str:
    quantiles = statistics.quantiles(seconds, n=100)
    return f"{quantiles[49] * 1e6:.0f} us (p99 {quantiles[98] * 1e6:.0f}, longest {max(seconds) * 1e6:.0f})"


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
