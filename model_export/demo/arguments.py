"""The command-line flags of the demo's training runs."""

from __future__ import annotations

import argparse

from model_export.distribution.cluster import DISTRIBUTIONS


def add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, help="passes over the ratings (default: chosen per data set)")
    parser.add_argument("--batch_size", type=int, help="examples per step (default: chosen per data set)")
    parser.add_argument(
        "--seed", type=int, default=1, help="random seed of weights, example order and dropout (default: %(default)s)"
    )
    parser.add_argument(
        "--held_out",
        choices=["test", "validation"],
        default="test",
        help="test: each user's last 20%% of ratings; validation: the last 10%% of the rest, for choosing settings "
        "(default: %(default)s)",
    )


def add_distribution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--distribution",
        choices=DISTRIBUTIONS,
        default="none",
        help="train in several processes, one command each, with TF_CONFIG; multi_worker: workers that hold all tables "
        "and step together; parameter_server: tables in shards on parameter servers (default: %(default)s)",
    )
