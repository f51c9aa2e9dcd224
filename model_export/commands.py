"""Implements the commands of the command line by calls of model_export's packages, and prints to the terminal."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from model_export.adoption.spec import read_names, read_spec
from model_export.cli import DEFAULT_MODELS, DEFAULT_RUN
from model_export.delta_commands import delta, fold
from model_export.demo import movielens
from model_export.demo.config import TrainConfig
from model_export.demo.ratings import RatingData
from model_export.demo.synthetic import SYNTHETIC, synthetic_ratings
from model_export.diff.command import diff
from model_export.distribution.cluster import ClusterTask
from model_export.environment import tf_config
from model_export.errors import ExportError
from model_export.export_config import ExportConfig, read_config, run_config
from model_export.exporter.versions import existing_versions, new_version_folder
from model_export.folder_checks import check_run, check_saved_model, is_keras_file
from model_export.importers.import_summary import serve_command
from model_export.parity.integrity import VARIABLES_PREFIX
from model_export.report.commands import inspect, verify
from model_export.stores.uri import StoreUri
from service.artifact.bundle import read_bundle

if TYPE_CHECKING:
    from model_export.demo.loop import EpochResult
    from model_export.demo.run import Run

# Defaults for synthetic data: its ratings are few, so batches are small. Other settings are the same as for MovieLens.
_SYNTHETIC_DEFAULTS = {"epochs": 10, "batch_size": 32}


_EXPORT_FLAGS = (
    "version",
    "batch_sizes",
    "lookup_device",
    "signatures",
    "export_to_tpu",
    "allow_nonfinite",
    "warmup",
    "table_dtype",
)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_command(arguments: argparse.Namespace) -> None:
    commands: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "demo": _demo,
        "fetch": _fetch,
        "train": _train,
        "export": _export,
        "adopt": _adopt,
        "import": _import,
        "delta": delta,
        "diff": diff,
        "compact": fold,
        "push": _push,
        "upload": _upload,
        "verify": verify,
        "inspect": inspect,
    }
    command = commands[arguments.command]
    store_uri = arguments.store_uri = _store_uri(arguments)
    if store_uri is None or arguments.command == "upload":
        command(arguments)
    else:
        try:
            from model_export.stores.staging import write_to_store
        except ModuleNotFoundError as error:
            raise ExportError(f"{store_uri} needs the extra [stores]: {error}") from error
        write_to_store(command, arguments, store_uri)


def _store_uri(arguments: argparse.Namespace) -> StoreUri | None:
    """Returns the object store that --out or the file of --config names for a command; None if it names a folder."""
    if getattr(arguments, "print_spec", False):
        # `adopt --print_spec` writes no version, so --out is ignored.
        arguments.out = None
    out = getattr(arguments, "out", None)
    if out is None and getattr(arguments, "config", None) is not None:
        config = read_config(arguments.config)
        out = config.out
        if arguments.version is None:
            arguments.version = config.arguments.get("version")
    return out if isinstance(out, StoreUri) else None


def _fetch(arguments: argparse.Namespace) -> None:
    data = _fetch_movielens(arguments.to)
    say(
        f"{arguments.to}: {len(data.rating):,} ratings by {len(data.users):,} users of {len(data.films):,} films; "
        "see NOTICE there for the terms of use"
    )


def _train(arguments: argparse.Namespace) -> None:
    if arguments.distribution == "none":
        _train_run(arguments, arguments.run, is_resumed=arguments.resume)
    else:
        # Parse TF_CONFIG before TensorFlow's slow start, so that a wrong TF_CONFIG is refused early.
        task = ClusterTask.parse(tf_config(), arguments.distribution)
        from model_export.distribution.failures import named_failures
        from model_export.distribution.strategies import serve_coordinator

        if arguments.distribution == "parameter_server" and task.kind != "chief":
            say(f"{task.kind} {task.index} serves the chief until SIGTERM")
            serve_coordinator(task)
            return
        with named_failures(task):
            _train_run(arguments, arguments.run, is_resumed=arguments.resume, task=task)
    say(f"run written to {arguments.run}; next: model-export export --run {arguments.run}")


def _export(arguments: argparse.Namespace) -> None:
    flags = {name: getattr(arguments, name) for name in _EXPORT_FLAGS}
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in flags.items() if v is not None}
    if arguments.labels:
        given["labels"] = _once("labels", arguments.labels)
    if getattr(arguments, "config", None) is not None:
        out = {} if arguments.out is None else {"out": str(arguments.out)}
        config = read_config(arguments.config, {**given, **out})
    elif getattr(arguments, "model", None) is not None:
        check_saved_model(arguments.model)
        if not is_keras_file(arguments.model):
            raise ExportError(f"{arguments.model} is a SavedModel: model-export adopt {arguments.model} --out DIR")
        if arguments.out is None:
            raise ExportError(
                "--out is missing: the folder of the model's versions, such as models/" + arguments.model.stem
            )
        config = ExportConfig("file", str(arguments.model), arguments.out, given, {"say": say})
    else:
        run = str(arguments.run or DEFAULT_RUN)
        config = ExportConfig("run", run, arguments.out or DEFAULT_MODELS, {"lookup_device": "both", **given})
    # Check the target folder before the slow export, so that a bad folder is refused early.
    assert isinstance(config.out, Path)  # run_command() has replaced an object store's URI by a temporary folder
    new_version_folder(config.out, config.arguments.get("version"))
    if config.kind == "run":
        check_run(Path(config.model))
    say("exporting")
    _done("exported", run_config(config), arguments)


def _adopt(arguments: argparse.Namespace) -> None:
    check_saved_model(arguments.saved_model)
    # All checks that need no TensorFlow come before TensorFlow's slow start.
    new_version_folder(arguments.out or arguments.saved_model.absolute().parent, arguments.version)
    if arguments.spec is not None and read_names(arguments.spec) is None:
        read_spec(arguments.spec, read_bundle(arguments.saved_model / VARIABLES_PREFIX))
    if arguments.print_spec:
        from model_export.adoption.adopt import print_spec

        say(print_spec(arguments.saved_model, allow_rounding=arguments.allow_rounding))
        return
    say("starting TensorFlow")
    from model_export.adoption.adopt import adopt

    artifact = adopt(
        arguments.saved_model,
        arguments.spec,
        arguments.out,
        version=arguments.version,
        measure=not arguments.no_measure,
        allow_rounding=arguments.allow_rounding,
        allow_unproven=arguments.allow_unproven,
        labels=_once("labels", arguments.labels or []),
        say=say,
    )
    _done("adopted", artifact, arguments)


def _import(arguments: argparse.Namespace) -> None:
    from model_export.importers.import_summary import import_summary
    from model_export.importers.import_tables import import_tables

    named = {option: _once(option, getattr(arguments, option)) for option in ("table", "feature", "keys", "oov")}
    with tqdm(unit="row", unit_scale=True, mininterval=0.5, disable=None, leave=False) as bar:

        def of_table(table: str) -> Callable[[int, int | None], None]:
            bar.reset()
            bar.set_description(table)

            def show(done: int, total: int | None) -> None:
                bar.total = total
                bar.update(done - bar.n)

            return show

        artifact = import_tables(
            arguments.out,
            named["table"],
            features=named["feature"],
            keys=named["keys"],
            oov=named["oov"],
            table_dtype=arguments.table_dtype,
            version=arguments.version,
            allow_nonfinite=arguments.allow_nonfinite,
            labels=_once("labels", arguments.labels or []),
            progress=of_table,
        )
    say(f"imported and verified: {artifact}")
    for line in import_summary(artifact, str(arguments.store_uri or arguments.out)):
        say(line)


def _done(what: str, artifact: Path, arguments: argparse.Namespace) -> None:
    say(f"{what} and verified: {artifact}")
    say(f"serve: {serve_command(str(arguments.store_uri or artifact.parent))}")


def _push(arguments: argparse.Namespace) -> None:
    # The module is imported here and not at the top, because it needs redis-py, which is an optional dependency.
    try:
        from model_export.remote.push_command import push_tables
    except ModuleNotFoundError as error:
        raise ExportError(f"push needs the extra [remote]: {error}") from error
    push_tables(arguments)


def _upload(arguments: argparse.Namespace) -> None:
    # The module is imported here and not at the top, because it needs obstore, which is an optional dependency.
    try:
        from model_export.stores.staging import upload_version
    except ModuleNotFoundError as error:
        raise ExportError(f"upload needs the extra [stores]: {error}") from error
    upload_version(arguments)


def _once(option: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ExportError(f"--{option} names {', '.join(twice)} twice")
    return dict(pairs)


def _demo(arguments: argparse.Namespace) -> None:
    arguments.out = arguments.out or DEFAULT_MODELS
    versions = existing_versions(arguments.out)
    if arguments.if_missing and versions:
        say(f"{arguments.out} holds version {versions[-1]}: nothing to do")
        return
    started = time.monotonic()
    new_version_folder(arguments.out, arguments.version)
    with tempfile.TemporaryDirectory() as temporary:
        arguments.run = arguments.run or Path(temporary) / "run"
        run = _train_run(arguments, arguments.run, is_resumed=False)
        _export(arguments)
    say(_result(run))
    say(f"done in {time.monotonic() - started:.0f} s")


def _load_data(arguments: argparse.Namespace) -> RatingData:
    if arguments.dataset == "synthetic":
        return synthetic_ratings()
    try:
        return _fetch_movielens(arguments.data)
    except ExportError as error:
        if arguments.dataset != "auto":
            raise
        line = "!" * 78
        say(f"{line}\n{error}\nGOING ON WITH SYNTHETIC DATA: the model will be a toy, not a film recommender.\n{line}")
        return synthetic_ratings()


def _fetch_movielens(folder: Path) -> RatingData:
    with tqdm(unit="B", unit_scale=True, desc="download", leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return movielens.fetch(folder, progress=show, say=say)


def _train_run(
    arguments: argparse.Namespace, folder: Path, *, is_resumed: bool, task: ClusterTask | None = None
) -> Run:
    data = _load_data(arguments)
    config = _config(arguments, data)
    say("starting TensorFlow")
    from model_export.demo.run import Listener, train

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
        run = train(data, config, folder, is_resumed=is_resumed, listener=listener, task=task)
    return run


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


def _result(run: Run) -> str:
    return f"held-out RMSE {run.held_out_rmse:.4f} ({_baselines(run.baselines)})"


def _baselines(baselines: Mapping[str, float]) -> str:
    return f"user + film bias {baselines['user_film_bias']:.4f}, global mean {baselines['global_mean']:.4f}"
