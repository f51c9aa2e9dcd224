"""The command line: flags, defaults and help. Commands are imported late, since most of them need TensorFlow."""

from __future__ import annotations

import argparse
from pathlib import Path

from model_export.export.signature_names import DEFAULT_BATCH_SIZES

_DATA = Path("data/movielens-100k")
_RUN = Path("runs/movielens")
_MODELS = Path("models/movielens")

_DESCRIPTION = """\
Trains a film-rating model on TPU embeddings and exports it as a stock SavedModel whose lookups a server can run on the
mapped tables.

  model-export demo                       fetch MovieLens 100K, train, export and verify: models/movielens/1
  model-export demo --dataset synthetic   the same in seconds, without network

or step by step:

  model-export fetch movielens --to data/movielens-100k
  model-export train                      data/movielens-100k -> runs/movielens
  model-export export                     runs/movielens -> models/movielens/<next version>
  model-export verify models/movielens/1  compares every signature with numpy
  model-export inspect models/movielens/1
"""


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser; the chosen command is in `command`."""
    parser = argparse.ArgumentParser(
        prog="model-export", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="fetch, train, export and verify in one go (under 3 minutes on 2 cores)")
    _add_dataset(demo)
    demo.add_argument("--if_missing", action="store_true", help="do nothing where --out already holds a version")
    demo.add_argument("--run", type=Path, help="keep the run here (default: a temporary folder)")
    _add_training(demo)
    _add_export(demo)

    fetch = commands.add_parser("fetch", help="download a data set and bring it into its canonical form")
    fetch.add_argument("dataset", choices=["movielens"], help="movielens: MovieLens 100K")
    fetch.add_argument("--to", type=Path, default=_DATA, metavar="DIR", help="folder to write (default: %(default)s)")

    train = commands.add_parser("train", help="train on a data set, with a checkpoint per epoch")
    _add_dataset(train)
    train.add_argument("--run", type=Path, default=_RUN, help="folder of the run (default: %(default)s)")
    train.add_argument("--resume", action="store_true", help="go on where the run stopped")
    _add_training(train)

    export = commands.add_parser("export", help="write a run's newest checkpoint as a new version")
    export.add_argument("--run", type=Path, default=_RUN, help="folder of the run (default: %(default)s)")
    _add_export(export)

    verify = commands.add_parser("verify", help="check an artifact's files, and every signature against numpy")
    verify.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")

    inspect = commands.add_parser("inspect", help="show what an artifact holds (no TensorFlow needed)")
    inspect.add_argument("artifact", type=Path, metavar="DIR", help="version folder, e.g. models/movielens/1")
    return parser


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        choices=["movielens", "synthetic", "auto"],
        default="movielens",
        help="movielens: MovieLens 100K; synthetic: tiny and generated; auto: movielens, or synthetic where it can not "
        "be fetched (default: %(default)s)",
    )
    parser.add_argument(
        "--data", type=Path, default=_DATA, metavar="DIR", help="where MovieLens is or goes (default: %(default)s)"
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, help="passes over the ratings (default: chosen per data set)")
    parser.add_argument("--batch_size", type=int, help="examples per step (default: chosen per data set)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and dropout (default: %(default)s)")
    parser.add_argument(
        "--held_out",
        choices=["test", "validation"],
        default="test",
        help="test: each user's last 20%% of ratings; validation: the last 10%% of the rest, for choosing settings "
        "(default: %(default)s)",
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=_MODELS, metavar="DIR", help="folder of the versions (default: %(default)s)"
    )
    parser.add_argument("--version", type=int, help="version number, a new one (default: the next)")
    parser.add_argument(
        "--batch_sizes",
        type=_sizes,
        default=DEFAULT_BATCH_SIZES,
        metavar="N,N,...",
        help=f"static sizes of the tensor-core lookup (default: {','.join(map(str, DEFAULT_BATCH_SIZES))})",
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers, such as 1,8,64") from error
    if sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r} is not ascending from 1 or more")
    return sizes
