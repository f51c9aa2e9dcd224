"""The command-line arguments of `model-export diff`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_diff(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="show what a new version changed: rows, their drift after alignment, neighbours, answers to requests",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="version folder, e.g. models/movielens/1")
    parser.add_argument("new", type=Path, metavar="NEW", help="version folder, e.g. models/movielens/2")
    parser.add_argument("--json", action="store_true", help="print the whole comparison as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the comparison as one page with plots")
    parser.add_argument(
        "--rows", type=_count, default=100_000, metavar="N", help="most rows compared per table (default: %(default)s)"
    )
    parser.add_argument(
        "--no_predictions", action="store_true", help="do not run recorded requests, which needs TensorFlow"
    )
    parser.add_argument(
        "--max_drift",
        type=float,
        metavar="PERCENT",
        help="fail if more than this share of a table's rows drifted, as a server with this flag refuses the version",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
