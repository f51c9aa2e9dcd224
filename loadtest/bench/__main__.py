"""Prepares the workloads, measures the service and its baselines, and prints the tables of docs/benchmark.md.

python -m loadtest.bench                         all of it, some 20 minutes
python -m loadtest.bench --quick                 once through, 5 minutes
python -m loadtest.bench --only 'gRPC/*' --only JSON/W1      some cases
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import sys
from pathlib import Path

from loadtest.bench import report
from loadtest.bench.cases import cases, models_of
from loadtest.bench.models import SIZES, prepared
from loadtest.bench.rounds import Measured, Options, can_run, measure, write_answers
from loadtest.bench.start import measure_starts
from loadtest.bench.workloads import Data
from loadtest.live_server import ROOT

START = "start/10GB"
DOCUMENT = ROOT / "docs" / "benchmark.md"


def main(arguments: list[str] | None = None) -> int:
    """Measures the chosen cases of the benchmark; returns the exit status, 0 even if a ratio is below its limit."""
    options = _parser().parse_args(arguments)
    wanted = [case for case in cases() if _matches(case.name, options.only)]
    has_start = _matches(START, options.only)
    if options.list:
        sys.stdout.writelines(f"{name}\n" for name in [*(case.name for case in wanted), *[START] * has_start])
        return 0
    wanted = can_run(wanted)
    if not wanted and not has_start:
        sys.stderr.write("no case has that name; see --list\n")
        return 2
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    size = "tiny" if options.tiny else "full"
    folder = options.folder / size
    folder.mkdir(parents=True, exist_ok=True)
    data = Data(SIZES[size])
    measured: list[Measured] = []
    if wanted:
        _say("preparing the models ...")
        prepared(folder / "models", size, models_of(wanted))
        write_answers(folder / "answers", data)
        how = Options(rounds, seconds, options.connections, *_cores())
        _say(f"starting servers for {len(wanted)} cases ...")
        measured = measure(wanted, folder, data, how, _say)
    starts = None
    if has_start:
        _say("starting with 10 GB of tables, and with tiny ones ...")
        starts = measure_starts(options.folder, rounds)
    tables = report.tables(measured, [starts.row()] if starts else [])
    text = report.headline(rounds, seconds, options.connections) + "\n\n" + tables
    sys.stdout.write(f"{text}\n\n{report.costs(measured)}\n")
    out = options.out or options.folder / "results.json"
    more = {"seconds": seconds, "connections": options.connections, "starts": starts and dataclasses.asdict(starts)}
    out.write_text(json.dumps(report.document(measured, **more), indent=1))
    if options.write_docs:
        report.write_into(DOCUMENT, text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case in each round")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases of such names; may be given again")
    parser.add_argument("--quick", action="store_true", help="one round of a second")
    parser.add_argument("--tiny", action="store_true", help="tiny tables: shows that it works, measures nothing")
    parser.add_argument("--list", action="store_true", help="names the cases and ends")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="keeps models between runs")
    parser.add_argument("--out", type=Path, help="JSON of the results (default: results.json in that folder)")
    parser.add_argument("--write_docs", action="store_true", help="puts the tables into docs/benchmark.md")
    return parser


def _matches(name: str, patterns: list[str] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _cores() -> tuple[frozenset[int], frozenset[int]]:
    free = sorted(os.sched_getaffinity(0))
    if len(free) < 2:
        _say("one core only: server and generator share it, so the figures include the generator")
    return frozenset(free[:1]), frozenset(free[-1:])


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
