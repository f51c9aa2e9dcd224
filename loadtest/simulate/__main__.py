"""Runs `python -m loadtest.simulate`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import NamedTuple

from loadtest.simulate import changes, mutations, power, repository

_KINDS = ("power", "repository", "changes")
_CHUNK = 20


class Summary(NamedTuple):
    """The results of some seeds. counts: seeds, cuts and the like; failures: seed -> what was broken."""

    counts: Counter[str]
    failures: dict[int, str]


def main(arguments: list[str]) -> int:
    """Runs the command; returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser("python -m loadtest.simulate", description=__doc__)
    parser.add_argument("--kind", choices=_KINDS, default="power", help="what is simulated")
    parser.add_argument("--seed", type=int, help="replay this seed and print its history")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to run seeds, on two processes")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a run")
    parser.add_argument(
        "--mutations", type=int, metavar="SEEDS", help="plant faults, and print which of them so many seeds find"
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if options.mutations:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        return int(not mutations.tell(options.mutations, lambda line: sys.stdout.write(f"{line}\n")))
    if options.seed is not None:
        failure, history = _replayed(options.kind, options.seed)
        sys.stdout.write("\n".join([*history, failure or "nothing is broken"]) + "\n")
        return int(bool(failure))
    return _search(options.kind, options.minutes * 60, options.first)


def _search(kind: str, seconds: float, first: int) -> int:
    began_s = time.monotonic()
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    with ProcessPoolExecutor(2) as pool:
        chunks = iter(count(first, _CHUNK))
        running = {pool.submit(_run, kind, next(chunks)) for _ in range(4)}
        while running:
            summary = (done := next(iter(running))).result()
            running.remove(done)
            counts += summary.counts
            failures |= summary.failures
            if time.monotonic() - began_s < seconds and len(failures) < 20:
                running.add(pool.submit(_run, kind, next(chunks)))
    minutes = (time.monotonic() - began_s) / 60
    told = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
    sys.stdout.write(f"{kind}: {told}; {minutes:.1f} minutes, {len(failures)} failures\n")
    for seed, failure in sorted(failures.items()):
        sys.stdout.write(f"{failure}\n  python -m loadtest.simulate --kind {kind} --seed {seed}\n")
    return int(bool(failures))


def _run(kind: str, first: int) -> Summary:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    for seed in range(first, first + _CHUNK):
        counts["seeds"] += 1
        if kind == "repository":
            failure = repository.run_seed(seed)
            counts["repositories"] += repository.EXAMPLES
        elif kind == "changes":
            found = changes.run_seed(seed)
            counts += Counter({"reads": found.reads, "reads of the cache": found.cached, "takeovers": found.takeovers})
            failure = found.failure
        else:
            outcome = power.run_seed(seed)
            counts += Counter({f"cuts of {outcome.case}": outcome.cuts, "cuts": outcome.cuts})
            failure = outcome.failure
        if failure:
            failures[seed] = failure
    return Summary(counts, failures)


def _replayed(kind: str, seed: int) -> tuple[str, list[str]]:
    if kind == "repository":
        return repository.run_seed(seed, is_shortened=True), []
    outcome = changes.run_seed(seed) if kind == "changes" else power.run_seed(seed)
    return outcome.failure, outcome.history


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
