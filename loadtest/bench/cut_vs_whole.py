"""Measures how many requests per second a signature answers with cut-out lookups, and as a whole graph, in one process.

Both run the same random requests in turns, with several concurrent callers, without a server. Ids of features in the
manifest lie within their tables; other integers are 0 or 1, and strings are empty.

    python -m loadtest.bench.cut_vs_whole models/movielens/1 --signature serving_default
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from loadtest.bench.lookup_vs_graph import machine, write
from service.engine.validation import checked
from service.graph.probes import random_request
from service.graph.run_comparison import compare_runs
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.types import Backend, SignatureSpec, Tensors


def main() -> None:
    """Measures the graph's rates with its lookups cut out and as a whole; prints one line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, help="a version folder with a lookup manifest")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--graph_threads", type=int, default=0)
    options = parser.parse_args()
    serve, name = frozenset({"serve"}), options.signature
    cut = ServableLoader(serve, "auto", options.graph_threads)("bench", 1, options.artifact)
    whole = ServableLoader(serve, "auto", options.graph_threads, has_towers=False)("bench", 1, options.artifact)
    if not isinstance(cut.backends[name], TowerBackend):
        parser.error(f"signature {name!r} runs as a whole; the server's log says why at a load")
    spec = cut.signatures[name]
    requests = {rows: request(spec, rows) for rows in options.rows}
    outputs = tuple(spec.outputs)
    runs = [partial(_run, servable.backends[name], name, outputs) for servable in (cut, whole)]
    found = compare_runs(*runs, requests, threads=options.callers)
    write(machine())
    write(f"{'rows':>6} {'cut 1/s':>10} {'whole 1/s':>10} {'cut/whole':>10}")
    for rows, rates in found.items():
        write(f"{rows:>6} {rates.cut:>10.0f} {rates.whole:>10.0f} {rates.ratio:>10.2f}")
    cut.close()
    whole.close()


def _run(backend: Backend, name: str, outputs: tuple[str, ...], inputs: Tensors) -> Tensors:
    return backend.run(name, inputs, outputs)


def request(spec: SignatureSpec, rows: int) -> Tensors:
    """Returns a random request in the form in which engine.validation gives it to a backend."""
    arrays, _ = checked(spec, random_request(spec, rows, np.random.default_rng(rows)))
    return arrays


if __name__ == "__main__":
    main()
