"""Declares the arguments of `model-export inspect` and `model-export verify`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from model_export.report.projector import MAX_ROWS
from model_export.row_names import LabelFile


def add_reports(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="show what any SavedModel holds: tables and their health, signatures, training (no TensorFlow needed)",
    )
    _add_report(inspect)
    inspect.add_argument(
        "--labels",
        type=_label_file,
        action="append",
        default=[],
        metavar="TABLE=FILE[#COLUMN]",
        help="colour a table's picture: CSV or TSV of key or row number, label and perhaps name; COLUMN of its header "
        "is the label, else the second (repeatable)",
    )
    inspect.add_argument(
        "--statistics", type=Path, metavar="DIR", help="lookup statistics of a training: its profile_data_directory"
    )
    inspect.add_argument("--run", type=Path, metavar="DIR", help="folder of the training run, for its loss curves")
    inspect.add_argument(
        "--projector",
        type=Path,
        metavar="DIR",
        help="write rows of each table for TensorBoard's projector: `tensorboard --logdir DIR` shows them",
    )
    inspect.add_argument(
        "--projector_rows",
        type=_projector_rows,
        default=10_000,
        metavar="N",
        help="rows of each table for --projector, drawn at random of a larger table, at most 100000 "
        "(default: %(default)s)",
    )
    inspect.add_argument("--fast", action="store_true", help="do not read the tables: no norms, no NaN, no dead rows")

    verify = commands.add_parser("verify", help="check an artifact's files, and every signature against numpy")
    _add_report(verify)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page with plots")


def _projector_rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_ROWS}")
    return int(text)


def _label_file(text: str) -> LabelFile:
    try:
        return LabelFile.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
