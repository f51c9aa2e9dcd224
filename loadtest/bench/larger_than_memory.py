"""Measures lookups in a table four times as large as its server's memory, with and without paging by the core.

    python -m loadtest.bench.larger_than_memory --picture docs/larger-than-memory.svg

Each server runs in a memory control group of its own, and reads a file of its own: servers share no page in memory.
`before` has --paged_tables=off, `random` also --table_pages=random, `paged` is the server's own choice.
Lookups of --ids ids come over --connections connections; a share of the ids is drawn from --hot_rows rows that are
spread over the table, the rest from all rows. Beside them, two connections look up one hot row at a time. After each
turn some answers are compared with the table's numbers.

Needs root, and three times the table on the disk; all of it is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from loadtest.bench.generator.load import Ask, Shot, drive
from loadtest.bench.large_model import write_large_model
from loadtest.bench.lookup_vs_graph import machine
from loadtest.bench.processes import Service, cpu_s
from loadtest.charts import Series, line_chart, stacked
from loadtest.memory_group import MemoryGroup, NoMemoryGroup
from loadtest.wire import DT_INT64, PREDICT_METHOD, message_classes

_DIM = 64
_ROW_BYTES = _DIM * 4
_DATA = "variables/variables.data-00000-of-00001"
_FLAGS = {
    "before": ("--paged_tables=off",),
    "random": ("--paged_tables=off", "--table_pages=random"),
    "paged": (),
}
# Number of different requests: so many that their cold rows do not fit into memory, even if 99 % of the ids are hot.
_NUM_LOOKUPS = 200_000
_CHUNK_ROWS = 1 << 18


def main(arguments: list[str] | None = None) -> int:
    """Measures the servers and prints a table; returns 1 if this process can make no memory control group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit_mib", type=int, default=512, help="memory of each server")
    parser.add_argument("--times", type=float, default=4.0, help="size of the table, as a multiple of --limit_mib")
    parser.add_argument("--ids", type=int, default=100, help="ids of a lookup")
    parser.add_argument("--hot_rows", type=int, default=20_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.5, 0.9, 0.99, 1.0])
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm_seconds", type=float, default=4.0, help="before each measurement")
    parser.add_argument("--folder", type=Path, help="where the tables lie; default: a temporary folder")
    parser.add_argument("--servers", nargs="+", choices=list(_FLAGS), default=list(_FLAGS))
    parser.add_argument("--picture", type=Path, help="where to write an SVG")
    options = parser.parse_args(arguments)
    num_rows = int(options.limit_mib * options.times * 2**20) // _ROW_BYTES
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
            servers = _started(stack, Path(folder), num_rows, options)
            found = _measured(servers, num_rows, options)
    except NoMemoryGroup as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{machine()}\n\n{_table(found)}")
    if options.picture:
        options.picture.write_text(_picture(found))
    return 0


def rows_of(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Computes the table's rows of [N] int64 ids by a formula; returns [N, D] float32."""
    # The mask gives the remainder of a division by 2^20, and is faster than the operator %.
    return ((ids[:, None] * 31 + np.arange(_DIM) * 7) & ((1 << 20) - 1)).astype(np.float32)


def write_model(target: Path, num_rows: int) -> None:
    """Writes a version folder with one table `row` of `num_rows` rows."""
    from model_export import import_tables

    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        np.save(f"{scratch}/row.npy", rows_of(np.arange(4)))
        import_tables(Path(scratch) / "m", {"row": f"{scratch}/row.npy"})
        write_large_model(Path(scratch) / "m" / "1", target, {"row": (num_rows, _DIM)})
    with (target / _DATA).open("r+b") as file:
        for begin in range(0, num_rows, _CHUNK_ROWS):
            file.write(rows_of(np.arange(begin, min(begin + _CHUNK_ROWS, num_rows))).tobytes())
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and the memory control group in which it runs."""

    service: Service
    group: MemoryGroup

    def metric(self, name: str) -> float:
        """Returns the value of a metric without labels; 0 if the server does not have it."""
        for line in self._read("/metrics").splitlines():
            if line.startswith(f"{name}{{}} "):
                return float(line.split()[1])
        return 0.0

    def is_right(self, ids: np.ndarray[Any, Any]) -> bool:
        """Says whether the server answers a lookup of some ids with the table's numbers."""
        body = json.dumps({"features": {"row": ids.tolist()}}).encode()
        answer = json.loads(self._read("/v1/models/default:lookup", body))
        return np.array_equal(np.array(answer["embeddings"]["row"], np.float32), rows_of(ids))

    def _read(self, path: str, body: bytes | None = None) -> str:
        url = f"http://127.0.0.1:{self.service.port(is_grpc=False)}{path}"
        request = urllib.request.Request(url, body, {"content-type": "application/json"} if body else {})
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    def faults(self) -> int:
        """Returns how often a thread of connections waited for the disk because a page was not in memory."""
        total = 0
        for task in Path(f"/proc/{self.service.pid}/task").iterdir():
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            total += int(rest.split()[9]) if name.startswith("edge") else 0
        return total


@dataclass(frozen=True, slots=True)
class Turn:
    """The figures of one server, measured with one share of hot ids among the looked-up ids.

    large: lookups of many ids. small: lookups of one hot row at the same time. used_bytes: the group's memory at the
    end.
    cold_rows: rows that the server read from the disk, per second. faults: how often threads of connections waited for
    the disk, per second.
    """

    large: Shot
    small: Shot
    used_bytes: int
    cold_rows: float
    faults: float


Found = dict[tuple[str, float], list[Turn]]


def _started(stack: ExitStack, folder: Path, num_rows: int, options: argparse.Namespace) -> dict[str, Server]:
    servers: dict[str, Server] = {}
    for name in options.servers:
        base = folder / name
        base.mkdir()
        if not servers:
            write_model(base / "1", num_rows)
        else:
            shutil.copytree(folder / options.servers[0] / "1", base / "1")
            os.sync()
    for name in options.servers:
        _forget(folder / name)
        group = stack.enter_context(MemoryGroup(options.limit_mib << 20))
        flags = (f"--model_base_path={folder / name}", "--graph_signatures=off", "--verify_tables=off")
        more = ("--max_queue_ms=60000", "--data_plane=core", "--threads=2", *_FLAGS[name])
        with group.inside():
            service = Service(frozenset(os.sched_getaffinity(0)), (*flags, *more))
        stack.callback(service.stop)
        service.wait()
        servers[name] = Server(service, group)
    return servers


def _forget(folder: Path) -> None:
    """Drops the pages of all files in a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _measured(servers: dict[str, Server], num_rows: int, options: argparse.Namespace) -> Found:
    found: Found = {}
    rng = np.random.default_rng(1)
    hot = rng.choice(num_rows, options.hot_rows, replace=False).astype(np.int64)
    ones = hot[:100, None]
    for turn in range(options.rounds):
        for share in options.shares:
            lookups = _ids(rng, num_rows, hot, share, options.ids)
            for name in options.servers[:: 1 if turn % 2 else -1]:
                asked = [_ask(servers[name], some) for some in (lookups, ones)]
                result = _turn(servers[name], *asked, options)
                found.setdefault((name, share), []).append(result)
                sys.stderr.write(f"{name} {share} {result}\n")
                if not all(servers[name].is_right(ids) for ids in lookups[:20]):
                    raise RuntimeError(f"{name} gave a wrong answer")
    return found


def _ids(
    rng: np.random.Generator, num_rows: int, hot: np.ndarray[Any, Any], share: float, size: int
) -> np.ndarray[Any, Any]:
    """Draws the ids of _NUM_LOOKUPS lookups, [_NUM_LOOKUPS, size] int64; `share` of the ids are of hot rows."""
    shape = (_NUM_LOOKUPS, size)
    return np.where(rng.random(shape) < share, rng.choice(hot, shape), rng.integers(0, num_rows, shape))


def _ask(server: Server, lookups: np.ndarray[Any, Any]) -> Ask:
    request_class, _ = message_classes()
    request = request_class()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    tensor = request.inputs["row"]
    first = lookups[0].tobytes()
    tensor.dtype, tensor.tensor_content = DT_INT64, first
    tensor.tensor_shape.dim.add().size = lookups.shape[1]
    message = request.SerializeToString()
    # All messages differ only in the bytes of their ids, and all answers have the same size.
    head, tail = message.split(first)
    bodies = [head + ids.tobytes() + tail for ids in lookups]
    with grpc.insecure_channel(f"127.0.0.1:{server.service.port(is_grpc=True)}") as channel:
        size = len(channel.unary_unary(PREDICT_METHOD)(message, timeout=60))
    return Ask(True, PREDICT_METHOD, bodies, [size] * len(bodies), [()] * len(bodies))


def _turn(server: Server, large: Ask, small: Ask, options: argparse.Namespace) -> Turn:
    pid, port = server.service.pid, server.service.port(is_grpc=True)
    shots: dict[str, Shot] = {}

    def look_up(name: str, asked: Ask, connections: int, server_cpu_s: Callable[[], float]) -> None:
        shots[name] = drive(
            asked,
            port,
            connections=connections,
            seconds=options.seconds,
            warm_s=options.warm_seconds,
            server_cpu_s=server_cpu_s,
        )

    before = server.metric("embedding_server_paged_cold_rows_total"), server.faults(), time.monotonic()
    beside = threading.Thread(target=look_up, args=("small", small, 2, lambda: 0.0))
    beside.start()
    look_up("large", large, options.connections, lambda: cpu_s([pid]))
    beside.join()
    seconds = time.monotonic() - before[2]
    cold_rows = (server.metric("embedding_server_paged_cold_rows_total") - before[0]) / seconds
    return Turn(
        shots["large"], shots["small"], server.group.used_bytes, cold_rows, (server.faults() - before[1]) / seconds
    )


def _median(turns: Sequence[Turn], figure: Callable[[Turn], float]) -> float:
    return float(statistics.median(figure(turn) for turn in turns))


def _table(found: Found) -> str:
    lines = [
        "| hot | server | lookups/s | p50 ms | p99 ms | one row: p50 ms | p99 ms | CPU us | waits/s | cold/s | MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, share), turns in sorted(found.items(), key=lambda item: item[0][1]):
        figures = [
            _shown(_median(turns, lambda t: t.large.requests_per_s), 0),
            _shown(_median(turns, lambda t: t.large.p50_ms), 1),
            _shown(_median(turns, lambda t: t.large.p99_ms), 1),
            _shown(_median(turns, lambda t: t.small.p50_ms), 2),
            _shown(_median(turns, lambda t: t.small.p99_ms), 2),
            _shown(_median(turns, lambda t: t.large.server_cpu_us), 0),
            _shown(_median(turns, lambda t: t.faults), 0),
            _shown(_median(turns, lambda t: t.cold_rows), 0) if name == "paged" else "",
            _shown(_median(turns, lambda t: t.used_bytes / 2**20), 0),
        ]
        lines.append(f"| {share:.0%} | {name} | {' | '.join(figures)} |")
    return "\n".join([*lines, ""])


def _shown(number: float, digits: int) -> str:
    # The percentiles of a server that answered no request while it was measured are not finite.
    return f"{number:,.{digits}f}" if math.isfinite(number) else "-"


def _picture(found: Found) -> str:
    def series(name: str, figure: Callable[[Turn], float]) -> Series:
        own = sorted((share, turns) for (server, share), turns in found.items() if server == name)
        return Series(name, [(share * 100, _median(turns, figure)) for share, turns in own])

    figures: tuple[tuple[str, str, Callable[[Turn], float]], ...] = (
        ("Lookups per second", "lookups/s", lambda turn: turn.large.requests_per_s),
        ("p99 of these lookups", "ms", lambda turn: turn.large.p99_ms),
        ("p99 of lookups of one hot row beside them", "ms", lambda turn: turn.small.p99_ms),
        ("Memory of the control group", "MiB", lambda turn: turn.used_bytes / 2**20),
    )
    names = list(dict.fromkeys(server for server, _ in found))
    return stacked(
        [
            line_chart(
                title, [series(name, figure) for name in names], x_label="% of the ids that are hot", y_label=unit
            )
            for title, unit, figure in figures
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
