"""Runs `model-export upload`, and uploads the versions of other commands whose --out is in an object store."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from model_export.errors import ExportError
from model_export.stores.upload import existing_versions, new_version, open_store, upload
from model_export.stores.uri import StoreUri
from service.stores.object_store import ObjectStore


def upload_version(arguments: argparse.Namespace) -> None:
    name = arguments.artifact.absolute().name
    version = arguments.version
    if version is None:
        if not name.isdecimal():
            raise ExportError(f"{arguments.artifact} is not named by a version number: give --version")
        version = int(name)
    if version < 1:
        raise ExportError(f"version is {version}; versions are positive integers")
    _upload(arguments.artifact, open_store(arguments.out), version)


def write_to_store(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace, out: StoreUri) -> None:
    """Runs a command that writes a version, with a temporary folder as its --out, and uploads the version.

    Args:
      arguments: version None means the next number in the store.

    Raises:
      ExportError: the command or the upload failed. After a failed upload, the temporary folder stays, and the message
        names the command that continues the upload.
    """
    store = open_store(out)
    if getattr(arguments, "if_missing", False) and (versions := existing_versions(store)):
        sys.stdout.write(f"{out} holds version {versions[-1]}: nothing to do\n")
        return
    arguments.version = new_version(store, arguments.version)
    base = Path(tempfile.mkdtemp(prefix="model-export-"))
    arguments.out = base
    artifact = base / str(arguments.version)
    try:
        command(arguments)
        _upload(artifact, store, arguments.version)
    except BaseException as error:
        if not artifact.is_dir():
            shutil.rmtree(base)
            raise
        again = f"to go on: model-export upload {artifact} --out {out}"
        if not isinstance(error, ExportError):
            sys.stderr.write(f"{artifact} is kept; {again}\n")
            raise
        raise ExportError(f"{error}\n{artifact} is kept; {again}") from error
    shutil.rmtree(base)


def _upload(artifact: Path, store: ObjectStore, version: int) -> None:
    with tqdm(
        desc="upload", unit="B", unit_scale=True, mininterval=0.5, leave=False, disable=None, file=sys.stderr
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = upload(artifact, store, version, show)
    sys.stdout.write(
        f"uploaded: {found.uri}, {found.num_bytes:,} bytes; sent now: {found.sent_objects} objects, "
        f"{found.sent_bytes:,} bytes\n"
    )
