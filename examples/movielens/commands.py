"""The commands of model-export that train and export the MovieLens demo: demo, fetch and train.

This module imports TensorFlow late, because its flags are part of every `model-export --help`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from model_export.distribution.cluster import DISTRIBUTIONS, ClusterTask
from model_export.environment import tf_config
from model_export.errors import ExportError
from model_export.exporter.versions import existing_versions, new_version_folder
from movielens import download
from movielens.rating_model import TrainConfig
from movielens.ratings import SYNTHETIC, RatingData, synthetic_ratings

if TYPE_CHECKING:
    from movielens.loop import EpochResult
    from movielens.run import Run

DEFAULT_RUN = Path("runs/movielens")
DEFAULT_MODELS = Path("models/movielens")
_DATA = Path("data/movielens-100k")
# Defaults for synthetic data: its ratings are few, so batches are small. Other settings are the same as for MovieLens.
_SYNTHETIC_DEFAULTS = {"epochs": 10, "batch_size": 32}

# A command, whose flags are parsed.
Command = Callable[[argparse.Namespace], None]


def add_demo(commands: Any, add_export: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds demo, fetch and train to the commands of model-export; add_export adds the flags of an export."""
    demo = commands.add_parser("demo", help="fetch, train, export and verify in one go (under 3 minutes on 2 cores)")
    _add_dataset(demo)
    demo.add_argument("--if_missing", action="store_true", help="do nothing if --out already holds a version")
    demo.add_argument("--run", type=Path, help="folder in which to keep the training run (default: a temporary folder)")
    _add_training(demo)
    add_export(demo)

    fetch = commands.add_parser("fetch", help="download a data set and convert it to the files that `train` reads")
    fetch.add_argument("dataset", choices=["movielens"], help="movielens: MovieLens 100K")
    fetch.add_argument("--to", type=Path, default=_DATA, metavar="DIR", help="folder to write (default: %(default)s)")

    train = commands.add_parser("train", help="train on a data set, with a checkpoint per epoch")
    _add_dataset(train)
    train.add_argument(
        "--run", type=Path, default=DEFAULT_RUN, help="folder of the training run (default: %(default)s)"
    )
    train.add_argument("--resume", action="store_true", help="resume training from the run's newest checkpoint")
    _add_training(train)
    train.add_argument(
        "--distribution",
        choices=DISTRIBUTIONS,
        default="none",
        help="train in several processes, one command each, with TF_CONFIG; multi_worker: workers that hold all tables "
        "and step together; parameter_server: tables in shards on parameter servers (default: %(default)s)",
    )


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        choices=["movielens", "synthetic", "auto"],
        default="movielens",
        help="movielens: MovieLens 100K; synthetic: tiny and generated; auto: movielens, or synthetic where it can not "
        "be fetched (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=_DATA,
        metavar="DIR",
        help="folder of the MovieLens data; downloaded into it if absent (default: %(default)s)",
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
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


def demo(arguments: argparse.Namespace, export: Command) -> None:
    arguments.out = arguments.out or DEFAULT_MODELS
    versions = existing_versions(arguments.out)
    if arguments.if_missing and versions:
        _say(f"{arguments.out} holds version {versions[-1]}: nothing to do")
        return
    started = time.monotonic()
    new_version_folder(arguments.out, arguments.version)
    with tempfile.TemporaryDirectory() as temporary:
        arguments.run = arguments.run or Path(temporary) / "run"
        run = _train_run(arguments, is_resumed=False)
        export(arguments)
    _say(f"held-out RMSE {run.held_out_rmse:.4f} ({_baselines(run.baselines)})")
    _say(f"done in {time.monotonic() - started:.0f} s")


def fetch(arguments: argparse.Namespace) -> None:
    data = _fetch_movielens(arguments.to)
    _say(
        f"{arguments.to}: {len(data.rating):,} ratings by {len(data.users):,} users of {len(data.films):,} films; "
        "see NOTICE there for the terms of use"
    )


def train(arguments: argparse.Namespace) -> None:
    if arguments.distribution == "none":
        _train_run(arguments, is_resumed=arguments.resume)
    else:
        # Parse TF_CONFIG before TensorFlow's slow start, so that a wrong TF_CONFIG is refused early.
        task = ClusterTask.parse(tf_config(), arguments.distribution)
        from model_export.distribution.failures import named_failures
        from movielens.distributed_loop import serve_coordinator

        if arguments.distribution == "parameter_server" and task.kind != "chief":
            _say(f"{task.kind} {task.index} serves the chief until SIGTERM")
            serve_coordinator(task)
            return
        with named_failures(task):
            _train_run(arguments, is_resumed=arguments.resume, task=task)
    _say(f"run written to {arguments.run}; next: model-export export --run {arguments.run}")


def _load_data(arguments: argparse.Namespace) -> RatingData:
    if arguments.dataset == "synthetic":
        return synthetic_ratings()
    try:
        return _fetch_movielens(arguments.data)
    except ExportError as error:
        if arguments.dataset != "auto":
            raise
        line = "!" * 78
        _say(f"{line}\n{error}\nGOING ON WITH SYNTHETIC DATA: the model will be a toy, not a film recommender.\n{line}")
        return synthetic_ratings()


def _fetch_movielens(folder: Path) -> RatingData:
    with tqdm(unit="B", unit_scale=True, desc="download", leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return download.fetch(folder, progress=show, say=_say)


def _train_run(arguments: argparse.Namespace, *, is_resumed: bool, task: ClusterTask | None = None) -> Run:
    data = _load_data(arguments)
    config = _config(arguments, data)
    _say("starting TensorFlow")
    from movielens.run import Listener, train

    with tqdm(unit="step", desc="train", mininterval=0.5, disable=None, leave=False) as bar:

        def on_start(steps: int, baselines: Mapping[str, float]) -> None:
            bar.reset(total=steps)
            bar.write(f"held-out RMSE to beat: {_baselines(baselines)}", file=sys.stdout)

        def on_steps(steps: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            bar.update(steps)

        def on_epoch(result: EpochResult) -> None:
            bar.write(
                f"epoch {result.epoch:2}  train loss {result.train_loss:.4f}  held-out RMSE {result.held_out_rmse:.4f}",
                file=sys.stdout,
            )

        listener = Listener(on_start, on_steps, on_epoch)
        return train(data, config, arguments.run, is_resumed=is_resumed, listener=listener, task=task)


def _config(arguments: argparse.Namespace, data: RatingData) -> TrainConfig:
    chosen = {"epochs": arguments.epochs, "batch_size": arguments.batch_size}
    defaults = _SYNTHETIC_DEFAULTS if data.name == SYNTHETIC else {}
    given = {name: value for name, value in chosen.items() if value is not None}
    try:
        return TrainConfig(
            seed=arguments.seed,
            held_out=arguments.held_out,
            distribution=getattr(arguments, "distribution", "none"),
            **{**defaults, **given},
        )
    except ValueError as error:
        raise ExportError(str(error)) from error


def _baselines(baselines: Mapping[str, float]) -> str:
    return f"user + film bias {baselines['user_film_bias']:.4f}, global mean {baselines['global_mean']:.4f}"


def _say(text: str) -> None:
    print(text, flush=True)
