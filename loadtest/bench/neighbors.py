"""Measures searches for nearest rows in one table beside usearch, faiss-cpu and numpy, on one processor.

python -m loadtest.bench.neighbors --rows 200000 1000000

The rows are float32 around random centres, or products of few random numbers with noise (--shape low_rank), which is
harder for an index; the queries are rows with noise. Each round asks all contenders in turn. `pip install usearch
faiss-cpu` first; a library that is missing is left out. The output has, for each contender, queries a second, p99 of a
call, recall@10 against a search in float64, build time and memory. At the end it shows lookups while this server's
index is built, against lookups alone.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadtest.bench.lookup_vs_graph import machine
from service.engine.low_priority import low_priority_thread
from service.engine.neighbors import RowSearch
from service.native_tables import core_tables
from service.tables.row_index import build_index
from service.tables.table import MappedTable
from service.types import TableInfo

_K = 10
_NO_IDS = np.empty(0, np.int64)
# Parameters of an HNSW index: the number of other rows to which it links a row, and of the candidates that a search
# keeps.
_LINKS, _CANDIDATES = 16, 64
_LOOKUP_ROWS = 128

Vectors = np.ndarray[Any, Any]
# Type of a search function: it takes [Q, D] queries and returns the ids of their nearest rows, [Q, k].
Find = Callable[[Vectors], Vectors]


class Contender(NamedTuple):
    """One way to search for nearest rows. per_call: queries of a call. build_s, mib: time and memory of its index."""

    name: str
    per_call: int
    find: Find
    build_s: float = 0.0
    mib: float = 0.0
    is_unfiltered: bool = True


def main() -> None:
    """Measures each way to search for nearest rows on tables of each size, and prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--metric", choices=["dot", "cosine", "l2"], default="cosine")
    parser.add_argument("--shape", choices=["clusters", "low_rank"], default="clusters", help="of the rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=200, help="of one contender in one round, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one contender in one round, at most")
    parser.add_argument("--without_indexes", action="store_true", help="compare exact searches only")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    _write(machine())
    for size in options.rows:
        _measure(size, options)


def _measure(size: int, options: argparse.Namespace) -> None:
    rng = np.random.default_rng(size)
    rows = 0.4 * rng.standard_normal((size, options.dim), np.float32)
    if options.shape == "clusters":
        centres = rng.standard_normal((max(size // 200, 10), options.dim), np.float32)
        rows += centres[rng.integers(0, len(centres), size)]
    else:
        rank = options.dim // 4
        rows += rng.standard_normal((size, rank), np.float32) @ rng.standard_normal((rank, options.dim), np.float32)
    queries = rows[rng.integers(0, size, options.queries)] + 0.2 * rng.standard_normal(
        (options.queries, options.dim), np.float32
    )
    if options.metric == "cosine":
        # The libraries' exact searches rank by dot product, which is the cosine if all rows have length 1.
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    true = _true_neighbors(rows, queries, options.metric)
    contenders = [
        *_ours(rows, options.metric, has_indexes=not options.without_indexes),
        *_numpy(rows, options.metric),
        *_faiss(rows, options.metric, has_indexes=not options.without_indexes),
        *_usearch(rows, options.metric, has_indexes=not options.without_indexes),
    ]
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    found: dict[str, dict[int, Vectors]] = {one.name: {} for one in contenders}
    for _ in range(options.rounds):
        for one in contenders:
            end_s = time.perf_counter() + options.seconds
            for start in range(0, len(queries) - one.per_call + 1, one.per_call):
                started_s = time.perf_counter()
                ids = one.find(queries[start : start + one.per_call])
                times[one.name].append(time.perf_counter() - started_s)
                found[one.name] |= dict(enumerate(ids, start))
                if time.perf_counter() > end_s:
                    break
    _write(f"{size} rows of {options.dim} float32 ({options.shape}), {options.metric}, k = {_K}")
    for one in contenders:
        seconds = times[one.name]
        shares = (len(set(ids) & set(true[query])) / _K for query, ids in found[one.name].items())
        # A filtered search has no recall, because its filter changes which rows are the true neighbours.
        recall = f", recall {statistics.mean(shares):.3f}" if one.is_unfiltered else ""
        rate = one.per_call * len(seconds) / sum(seconds)
        p99_ms = float(np.quantile(seconds, 0.99)) * 1e3
        index = f"; built in {one.build_s:.1f} s, {one.mib:.0f} MiB" if one.build_s else ""
        _write(f"  {one.name:32} {rate:9.0f} queries/s, p99 of a call {p99_ms:8.2f} ms{recall}{index}")
    if not options.without_indexes:
        _beside_a_build(rows)


def _true_neighbors(rows: Vectors, queries: Vectors, metric: str) -> list[list[int]]:
    found = []
    wide = rows.astype(np.float64)
    for query in queries.astype(np.float64):
        scores = np.square(wide - query).sum(axis=1) if metric == "l2" else -(wide @ query)
        best = np.argpartition(scores, _K)[:_K]
        found.append(best.tolist())
    return found


def _ours(rows: Vectors, metric: Any, *, has_indexes: bool) -> Iterator[Contender]:
    table = _mapped(rows)
    tenth = np.sort(np.random.default_rng(0).permutation(len(rows))[: len(rows) // 10])

    def find(queries: Vectors, allowed: Vectors | None = None) -> Vectors:
        own = np.full(len(queries), -1)
        search = RowSearch(np.ascontiguousarray(queries), own, _K, metric, allowed, _NO_IDS, 60.0, 1)
        return table.nearest(search).ids

    for per_call in (1, 32):
        yield Contender(f"ours, exact, {per_call} a call", per_call, find)
    yield Contender("ours, exact, a tenth allowed", 1, lambda queries: find(queries, tenth), is_unfiltered=False)
    if not has_indexes:
        return
    started_s = time.perf_counter()
    index = build_index(table.rows, table.nearest, lambda: None, len(rows), metric)
    if index is None:
        return

    def find_by_index(queries: Vectors) -> Vectors:
        named = zip(queries, index.candidates(queries), strict=True)
        return np.concatenate([find(query[None], rows) for query, rows in named])

    name = f"ours, {index.probes} of {index.num_lists} lists"
    for per_call in (1, 32):
        built_s = time.perf_counter() - started_s if per_call == 1 else 0.0
        yield Contender(f"{name}, {per_call} a call", per_call, find_by_index, built_s, index.nbytes / 2**20)


def _mapped(rows: Vectors) -> MappedTable:
    return MappedTable(TableInfo("t", *rows.shape, dtype="float32", nbytes=rows.nbytes, features=()), rows)


def _numpy(rows: Vectors, metric: str) -> Iterator[Contender]:
    if metric == "l2":
        return

    def find(queries: Vectors) -> Vectors:
        return np.argpartition(-(queries @ rows.T), _K, axis=1)[:, :_K]

    yield Contender("numpy, exact, 32 a call", 32, find)


def _faiss(rows: Vectors, metric: str, *, has_indexes: bool) -> Iterator[Contender]:
    faiss = _library("faiss")
    if faiss is None:
        return
    faiss.omp_set_num_threads(1)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    size, dim = rows.shape

    def contender(name: str, per_call: int, index: Any, build_s: float = 0.0, mib: float = 0.0) -> Contender:
        return Contender(f"faiss, {name}", per_call, lambda queries: index.search(queries, _K)[1], build_s, mib)

    flat = faiss.IndexFlat(dim, kind)
    flat.add(rows)
    yield contender("exact, 1 a call", 1, flat)
    yield contender("exact, 32 a call", 32, flat)
    if not has_indexes:
        return
    hnsw = faiss.IndexHNSWFlat(dim, _LINKS, kind)
    hnsw.hnsw.efSearch = _CANDIDATES
    yield contender("HNSW", 1, hnsw, *_built(lambda: hnsw.add(rows)))
    lists = int(4 * size**0.5)
    ivf = faiss.IndexIVFFlat(faiss.IndexFlat(dim, kind), dim, lists, kind)
    ivf.nprobe = max(lists // 64, 1)

    def build() -> None:
        ivf.train(rows[:: max(size // (64 * lists), 1)])
        ivf.add(rows)

    yield contender(f"IVF of {lists} lists", 1, ivf, *_built(build))


def _usearch(rows: Vectors, metric: str, *, has_indexes: bool) -> Iterator[Contender]:
    library = _library("usearch.index")
    if library is None:
        return
    name = {"dot": "ip", "cosine": "cos", "l2": "l2sq"}[metric]

    def exact(queries: Vectors) -> Vectors:
        found = library.search(rows, queries, _K, metric=library.MetricKind[_KINDS[name]], exact=True, threads=1)
        return np.asarray(found.keys).reshape(len(queries), -1)

    for per_call in (1, 32):
        yield Contender(f"usearch, exact, {per_call} a call", per_call, exact)
    for dtype in ("f32", "f16", "i8") if has_indexes else ():
        index = _usearch_index(library, rows.shape[1], name, dtype)

        def find(queries: Vectors, index: Any = index) -> Vectors:
            return np.asarray(index.search(queries, _K, threads=1).keys).reshape(len(queries), -1)

        build_s, mib = _built(lambda index=index: index.add(np.arange(len(rows)), rows, threads=1))
        yield Contender(f"usearch, HNSW of {dtype}", 1, find, build_s, mib)


_KINDS = {"ip": "IP", "cos": "Cos", "l2sq": "L2sq"}


def _usearch_index(library: Any, dim: int, metric: str, dtype: str) -> Any:
    return library.Index(
        ndim=dim, metric=metric, dtype=dtype, connectivity=_LINKS, expansion_add=128, expansion_search=_CANDIDATES
    )


def _beside_a_build(rows: Vectors) -> None:
    place = 0, rows.reshape(-1).view(np.uint8), np.empty(0, np.uint8), *rows.shape
    rng = np.random.default_rng(1)
    out = np.empty((_LOOKUP_ROWS, rows.shape[1]), np.float32)

    def looked_up(is_over: Callable[[int], bool]) -> list[float]:
        seconds: list[float] = []
        while not is_over(len(seconds)):
            ids = rng.integers(0, len(rows), _LOOKUP_ROWS)
            started_s = time.perf_counter()
            core_tables().gather(*place, ids, out)
            seconds.append(time.perf_counter() - started_s)
            # Pause between two lookups, because a server does other work between them.
            time.sleep(0.001)
        return seconds

    alone = looked_up(lambda count: count >= 2000)
    table = _mapped(rows)
    with low_priority_thread("row-index") as thread:
        built = thread.submit(build_index, table.rows, table.nearest, lambda: None, len(rows), "cosine")
        beside = looked_up(lambda _: built.done())
    _write(f"  lookups: {_tails(alone)} alone, {_tails(beside)} while this index is built")


def _built(build: Callable[[], Any]) -> tuple[float, float]:
    """Runs a function that builds an index; returns its seconds, and how many MiB the process grew."""
    before, started_s = _resident_mib(), time.perf_counter()
    build()
    return time.perf_counter() - started_s, _resident_mib() - before


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        _write(f"  {name.partition('.')[0]} is not installed")
        return None


def _tails(seconds: list[float]) -> str:
    quantiles = statistics.quantiles(seconds, n=100)
    return f"{quantiles[49] * 1e6:.0f} us (p99 {quantiles[98] * 1e6:.0f})"


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
