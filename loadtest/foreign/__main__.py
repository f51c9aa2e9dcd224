"""Builds foreign models, adopts them, and compares answers of the original and adopted versions with TensorFlow's."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

# TensorFlow's C++ code then logs fatal errors only, not the processor's features and its sessions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from loadtest.foreign.models import ForeignModel, all_models, model_named
from loadtest.live_server import header, say


def main(argv: Sequence[str] | None = None) -> int:
    """Tests the chosen foreign models; returns 0 if each was skipped, or adopted with answers equal to the bit."""
    arguments = _parser().parse_args(argv)
    models = _random(arguments) if arguments.random else _chosen(arguments.only)
    if arguments.list:
        sys.stdout.write("".join(f"{model.name}\n" for model in models))
        return 0
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return _run(models, folder.resolve(), arguments)


def _run(models: Sequence[ForeignModel], folder: Path, arguments: argparse.Namespace) -> int:
    sys.stderr.write(f"building and adopting {len(models)} models\n")
    # These modules import TensorFlow, so they are imported only after the arguments were checked.
    from loadtest.foreign.campaign import Plan, run
    from loadtest.foreign.report import COLUMNS, findings, row_of, summary, verdict

    plan = Plan(arguments.requests, arguments.together)
    say(header(*COLUMNS))
    results = []
    for result in run(models, folder, plan):
        results.append(result)
        say(row_of(result))
        if arguments.json:
            # The file of results is written after each model, so that results remain if a long run is stopped.
            arguments.json.write_text(json.dumps([asdict(found) for found in results], indent=1, default=str) + "\n")
    for result in results:
        for line in findings(result):
            say(line)
        if arguments.random and verdict(result) != "equal":
            number = result.name.rpartition("_")[2]
            again = f"--random 1 --seed {arguments.seed} --requests {arguments.requests} --only {number}"
            say(f"    python -m loadtest.foreign {again}")
    say(f"\n{summary(results)}")
    return 0 if {verdict(result) for result in results} <= {"equal", "skipped"} else 1


def _chosen(patterns: Sequence[str]) -> list[ForeignModel]:
    models = all_models()
    for pattern in patterns:
        if not fnmatch.filter(models, pattern):
            raise SystemExit(f"--only {pattern}: no model has this name; --list tells of all {len(models)}")
    return [m for m in models.values() if not patterns or any(fnmatch.fnmatch(m.name, p) for p in patterns)]


def _random(arguments: argparse.Namespace) -> list[ForeignModel]:
    from loadtest.foreign.random_models import random_name

    if invalid := [number for number in arguments.only if not number.isdecimal()]:
        raise SystemExit(f"--only {invalid[0]}: with --random, name models by their numbers, such as --only 7 12")
    numbers = [int(number) for number in arguments.only] or range(arguments.random)
    models = [model_named(random_name(arguments.seed, number)) for number in numbers]
    if arguments.only:
        sys.stderr.write("".join(f"{model.words}\n" for model in models))
    return models


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.foreign", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAMES",
        help="models, with * and ? as in file names, or numbers of random models",
    )
    parser.add_argument("--random", type=int, metavar="N", help="compose N random models instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random models (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="list the models' names and do nothing")
    parser.add_argument("--requests", type=int, default=500, help="of each signature over gRPC (default %(default)s)")
    parser.add_argument("--together", type=int, default=10, help="models of one pair of servers (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here, after each model")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build and adopt here, and leave all of it there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
