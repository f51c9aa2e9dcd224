"""Checks the folders that a command gets, without TensorFlow; an error says in one line why a folder does not fit.

--out names a folder or an object store; both are told apart here, without obstore.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path

from model_export.errors import ExportError, why
from service.artifact.manifest import Manifest
from service.errors import did_you_mean
from service.versions.model_config import is_in_store

SAVED_MODEL = "saved_model.pb"
RUN_FILE = "run.json"
_KERAS = (".keras", ".h5", ".hdf5")


class StoreUri(str):
    """The URI below which an object store has the versions of one model, such as s3://bucket/models/film."""

    __slots__ = ()


def out_place(text: str) -> Path | StoreUri:
    return StoreUri(text.rstrip("/")) if is_in_store(text) else Path(text)


def is_keras_file(path: str | Path) -> bool:
    return Path(path).suffix in _KERAS and Path(path).is_file()


def keras_version(path: Path) -> str:
    """Returns the version of Keras that wrote a model's file, without loading Keras; raises ExportError."""
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                return str(json.loads(archive.read("metadata.json"))["keras_version"])
        import h5py

        with h5py.File(path) as file:
            return str(file.attrs["keras_version"])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path} is not a model that Keras saved: {error}") from error


def check_model(path: Path) -> None:
    """Raises ExportError unless a path is a SavedModel or the file of a Keras model."""
    if is_keras_file(path):
        keras_version(path)
    else:
        check_saved_model(path)


def check_saved_model(folder: Path) -> None:
    """Raises ExportError unless a path is a SavedModel; the error says what it is, and what to name instead."""
    if (folder / SAVED_MODEL).is_file():
        return
    if not folder.exists():
        names = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
        raise ExportError(f"{folder} does not exist{did_you_mean(folder.name, names)}")
    if not folder.is_dir():
        raise ExportError(_not_a_folder(folder))
    names = [path.name for path in folder.iterdir()]
    versions = sorted((name for name in names if (folder / name / SAVED_MODEL).is_file()), key=_version_order)
    if versions:
        raise ExportError(f"{folder} is a folder of versions: name one, such as {folder / versions[-1]}")
    if found := sorted(folder.glob(f"*/[0-9]*/{SAVED_MODEL}")):
        raise ExportError(f"{folder} is a folder of models: name a version of one, such as {found[0].parent}")
    if RUN_FILE in names:
        raise ExportError(
            f"{folder} is the folder of a training run: write a SavedModel with `model-export export --run {folder}`"
        )
    if any(name == "checkpoint" or name.endswith(".index") for name in names):
        raise ExportError(
            f"{folder} holds a checkpoint: variables without signatures. Restore it into its model and export that "
            "(tf.saved_model.save, or model_export.export)"
        )
    if f"{SAVED_MODEL}txt" in names:
        raise ExportError(
            f"{folder} has its graph as text: write it again with tf.saved_model.load and tf.saved_model.save"
        )
    raise ExportError(f"{folder} has no {SAVED_MODEL}: it is not a SavedModel")


def check_described(folder: Path) -> Manifest:
    """Returns the manifest of an artifact; raises ExportError if it has none, or ArtifactError if it is damaged."""
    manifest = Manifest.read(folder) if folder.is_dir() else None
    if manifest is None:
        check_saved_model(folder)
        raise ExportError(f"{folder} has no lookup manifest; `model-export` did not write it")
    return manifest


def check_run(folder: Path) -> None:
    if not (folder / RUN_FILE).is_file():
        raise ExportError(
            f"{folder} has no {RUN_FILE}: it is not the folder of a `model-export train` run; "
            "a model of yours: model-export export MODEL.keras --out DIR"
        )


def check_writable(folder: Path) -> None:
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise ExportError(f"cannot write to {folder}: {nearest} is a file")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".tmp-", dir=nearest))
    except OSError as error:
        raise ExportError(f"cannot write to {folder}: {nearest}: {why(error)}") from error


def _not_a_folder(path: Path) -> str:
    if path.name == SAVED_MODEL:
        return f"{path} is the file in a SavedModel: name its folder, {path.parent}"
    return f"{path} is a file, not the folder of a SavedModel"


def _version_order(name: str) -> tuple[bool, int, str]:
    return name.isdecimal(), int(name) if name.isdecimal() else 0, name
