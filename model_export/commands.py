"""Implements the commands of the command line by calls of model_export's packages, and prints to the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np

from model_export.adoption.spec import read_names, read_spec
from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from model_export.compaction.reduction import reduction_lines
from model_export.diff.command import diff
from model_export.errors import ExportError, why
from model_export.export_config import EXPORT_FLAGS, ExportConfig, read_config, run_config
from model_export.exporter.versions import new_version_folder
from model_export.folder_checks import StoreUri, check_model, check_run, is_keras_file
from model_export.graphs.source import VARIABLES_PREFIX
from model_export.importers.import_tables import serve_command
from model_export.report.commands import inspect, shown_rows, verify
from model_export.row_names import LabelFile, check_readable
from movielens.commands import DEFAULT_MODELS, DEFAULT_RUN, demo, fetch, train
from service.artifact.bundle import read_bundle
from service.artifact.manifest import Manifest
from service.types import Array

T = TypeVar("T")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_command(arguments: argparse.Namespace) -> None:
    commands: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "demo": partial(demo, export=_export),
        "fetch": fetch,
        "train": train,
        "export": _export,
        "adopt": _adopt,
        "import": _import,
        "delta": _delta,
        "diff": diff,
        "compact": _fold,
        "push": lambda given: _of_extra("remote", "remote.push", "push").push_tables(given),
        "upload": lambda given: _of_extra("stores", "stores.upload", "upload").upload_version(given),
        "verify": verify,
        "inspect": inspect,
    }
    command = commands[arguments.command]
    for file in getattr(arguments, "labels", ()):
        check_readable(file)
    store_uri = arguments.store_uri = _store_uri(arguments)
    if store_uri is None or arguments.command == "upload":
        command(arguments)
    else:
        _of_extra("stores", "stores.upload", store_uri).write_to_store(command, arguments, store_uri)


def _store_uri(arguments: argparse.Namespace) -> StoreUri | None:
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


def _export(arguments: argparse.Namespace) -> None:
    flags = {name: getattr(arguments, name) for name in EXPORT_FLAGS}
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in flags.items() if v is not None}
    if arguments.labels:
        given["labels"] = _labels(arguments)
    if getattr(arguments, "config", None) is not None:
        out = {} if arguments.out is None else {"out": str(arguments.out)}
        config = read_config(arguments.config, {**given, **out})
    elif getattr(arguments, "model", None) is not None:
        check_model(arguments.model)
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
        if Path(config.model) == DEFAULT_RUN and not DEFAULT_RUN.is_dir():
            raise ExportError(
                "name a model: model-export export FILE.keras --out DIR; --config FILE: any trained model"
            )
        check_run(Path(config.model))
    say("exporting")
    _done("exported", run_config(config), arguments)


def _adopt(arguments: argparse.Namespace) -> None:
    check_model(arguments.saved_model)
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
        labels=_labels(arguments),
        say=say,
    )
    _done("adopted", artifact, arguments)


def _import(arguments: argparse.Namespace) -> None:
    from model_export.importers.import_tables import import_summary, import_tables

    named = {option: _once(option, getattr(arguments, option)) for option in ("table", "feature", "keys", "oov")}
    with shown_rows() as shown:
        artifact = import_tables(
            arguments.out,
            named["table"],
            features=named["feature"],
            keys=named["keys"],
            oov=named["oov"],
            table_dtype=arguments.table_dtype,
            version=arguments.version,
            allow_nonfinite=arguments.allow_nonfinite,
            labels=_labels(arguments),
            progress=shown,
        )
    say(f"imported and verified: {artifact}")
    for line in import_summary(artifact, str(arguments.store_uri or arguments.out)):
        say(line)


def _done(what: str, artifact: Path, arguments: argparse.Namespace) -> None:
    say(f"{what} and verified: {artifact}")
    say(f"serve: {serve_command(str(arguments.store_uri or artifact.parent))}")


def _delta(arguments: argparse.Namespace) -> None:
    ids, rows = _read_rows(arguments.rows)
    file = write_delta(
        arguments.artifact, arguments.table, ids, rows, sequence=arguments.sequence, force=arguments.force
    )
    say(f"{len(ids)} rows of table {arguments.table!r}: {file}")


def _fold(arguments: argparse.Namespace) -> None:
    with shown_rows() as shown:
        artifact = compact(
            arguments.artifact,
            arguments.out,
            version=arguments.version,
            journal=arguments.journal,
            without_journal=arguments.without_journal,
            skip_refused=arguments.skip_refused,
            table_dtype=arguments.table_dtype,
            progress=shown,
        )
    manifest = Manifest.read(artifact)
    if manifest is not None and arguments.table_dtype is not None:
        say("\n".join(reduction_lines(manifest)))
    say(f"compacted and verified: {artifact}")


def _read_rows(path: Path) -> tuple[Array, Array]:
    try:
        # allow_pickle=False: a pickled object in the .npz file could run code.
        with np.load(path, allow_pickle=False) as arrays:
            ids, rows = arrays["ids"], arrays["rows"]
    except OSError as error:
        raise ExportError(f"cannot read {path}: {why(error)}") from error
    except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise ExportError(f"{path}: expected a .npz file with the arrays ids and rows") from error
    if ids.dtype.kind not in "iu" or rows.dtype.kind != "f":
        raise ExportError(f"{path}: ids are {ids.dtype} and rows {rows.dtype}, expected int64 and float32")
    return ids, rows


def _of_extra(extra: str, module: str, what: str) -> Any:
    """Imports a module that needs an optional dependency; raises ExportError for `what` if the extra is missing."""
    try:
        return import_module(f"model_export.{module}")
    except ModuleNotFoundError as error:
        raise ExportError(f"{what} needs the extra [{extra}]: {error}") from error


def _labels(arguments: argparse.Namespace) -> dict[str, LabelFile]:
    return _once("labels", [(file.table, file) for file in arguments.labels])


def _once(option: str, pairs: list[tuple[str, T]]) -> dict[str, T]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ExportError(f"--{option} names {', '.join(twice)} twice")
    return dict(pairs)
