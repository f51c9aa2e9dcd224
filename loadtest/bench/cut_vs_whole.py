"""Measures how many requests per second a signature answers with cut-out lookups, and as a whole graph, in one process.

The native core runs both, with the same random requests in turns and several concurrent callers, without a server. Ids
of features in the manifest lie within their tables; other integers are 0 or 1, and strings are empty.

    python -m loadtest.bench.cut_vs_whole models/movielens/1 --signature serving_default
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from loadtest.bench.lookup_vs_graph import machine, write
from service.artifact.manifest import Manifest
from service.graph.probes import random_request
from service.process.trial import Trial


def main() -> None:
    """Measures the graph's rates with its lookups cut out and as a whole; prints one line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, help="a version folder with a lookup manifest")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--turns", type=int, default=9, help="of each form, for each number of rows")
    options = parser.parse_args()
    name, manifest = options.signature, Manifest.read(options.artifact)
    if manifest is None:
        parser.error(f"{options.artifact} has no lookup manifest")
    with Trial(options.artifact, manifest, {name}, frozenset({"serve"})) as trial:
        if not trial.can_cut(name):
            parser.error(f"signature {name!r} runs as a whole: {trial.not_run(name) or 'its lookups are part of it'}")
        spec = trial.signatures[name]
        requests = {rows: random_request(spec, rows, np.random.default_rng(rows)) for rows in options.rows}
        found = trial.rates(name, requests, turns=options.turns)
    write(machine())
    write(f"{'rows':>6} {'cut 1/s':>10} {'whole 1/s':>10} {'cut/whole':>10}")
    for rows, rates in found.items():
        write(f"{rows:>6} {rates.cut:>10.0f} {rates.whole:>10.0f} {rates.ratio:>10.2f}")


if __name__ == "__main__":
    main()
