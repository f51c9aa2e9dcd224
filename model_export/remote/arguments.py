"""Declares the command-line flags of `model-export push`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_push(commands: Any) -> None:
    parser = commands.add_parser(
        "push",
        help="write a version's tables into a Valkey or Redis cluster, for --remote_tables (no TensorFlow)",
    )
    parser.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")
    parser.add_argument(
        "--to", required=True, metavar="ADDRESS", help="valkey://HOST:PORT,HOST:PORT?OPTION=VALUE; see docs/scaling.md"
    )
    parser.add_argument("--model", metavar="NAME", help="as the server names it (default: the folder above DIR)")
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="a table to write (repeatable; default: all)"
    )
    parser.add_argument(
        "--keep",
        type=int,
        default=2,
        metavar="N",
        help="versions that stay in the cluster, this one included; older ones are removed (default: %(default)s)",
    )
    parser.add_argument(
        "--max_mb_per_s",
        type=float,
        default=0.0,
        metavar="MB",
        help="most megabytes a second that are written, and that are read back (default: no limit)",
    )
