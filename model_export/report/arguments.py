"""Declares the command-line flags of `model-export verify` and `model-export inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from model_export.report.row_names import LabelFile


def add_reports(commands: Any) -> None:
    """Adds the commands verify and inspect, and their flags, to the parser of model-export."""
    verify = commands.add_parser("verify", help="check an artifact's files, and every signature against numpy")
    _add_report(verify)

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
    inspect.add_argument("--fast", action="store_true", help="do not read the tables: no norms, no NaN, no dead rows")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page with plots")


def _label_file(text: str) -> LabelFile:
    try:
        return LabelFile.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
