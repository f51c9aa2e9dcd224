"""Copies one version into an object store, in an order that shows servers the version only once it is complete.

The manifest is written first, and only if no object has its name: the manifest claims the version's number. It holds
checksums and the time of the export. So a repeated upload recognises its own version by the manifest, and sends only
missing objects. The marker `saved_model.pb` is written last, after the store has listed all other objects with their
sizes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from model_export.errors import ExportError
from model_export.folder_checks import SAVED_MODEL, StoreUri, check_described, check_saved_model
from service.artifact.manifest import MANIFEST_PATH
from service.errors import InvalidRequest
from service.stores.object_store import ObjectExists, ObjectStore, StoredObject, StoreError

# Type of a callback for an upload's progress, with the arguments (bytes sent so far, bytes in all).
Progress = Callable[[int, int], None]


class Uploaded(NamedTuple):
    """The result of an upload. uri: the version's URI; sent_*: sent by this call; num_bytes: of the whole version."""

    uri: str
    sent_objects: int
    sent_bytes: int
    num_bytes: int


def open_store(uri: str) -> ObjectStore:
    try:
        return ObjectStore(uri, is_patient=True)
    except InvalidRequest as error:
        raise ExportError(error.message) from error


def new_version(store: ObjectStore, version: int | None) -> int:
    """Returns the number of a new version in an object store; None means the highest number plus 1, or 1.

    Raises:
      ExportError: the version is not positive or exists, or the store can not be listed.
    """
    numbers = existing_versions(store)
    if version is None:
        return 1 + max(numbers, default=0)
    if version < 1:
        raise ExportError(f"version is {version}; versions are positive integers")
    if version in numbers:
        raise ExportError(f"{store.uri}/{version} exists; a version is never overwritten: leave --version out")
    return version


def existing_versions(store: ObjectStore) -> list[int]:
    try:
        return sorted(int(name) for name in store.folders() if name.isdecimal())
    except StoreError as error:
        raise ExportError(f"cannot read {store.uri}: {error.text}") from error


def upload(artifact: Path, store: ObjectStore, version: int, progress: Progress = lambda done, total: None) -> Uploaded:
    """Writes a version's files into a store below the version's number; sends no object that an earlier call has sent.

    Args:
      artifact: the version's folder, with a manifest. progress: called while objects are sent.

    Raises:
      ArtifactError: the manifest is damaged.
      ExportError: the folder lacks files of its manifest, the number belongs to another version, or the store can not
        be read or written; the message names the reason. A repeated call continues the upload.
    """
    files = _files(artifact)
    name, where = str(version), f"{store.uri}/{version}"
    total = sum(files.values())
    sent_objects = sent_bytes = 0

    def send(path: str, *, is_new: bool = False) -> None:
        nonlocal sent_objects, sent_bytes
        before = done
        store.write(name, path, artifact / path, is_new=is_new, progress=lambda part: progress(before + part, total))
        sent_objects, sent_bytes = sent_objects + 1, sent_bytes + files[path]

    try:
        stored = {one.path: one for one in store.objects(name)}
        if stored and MANIFEST_PATH not in stored:
            raise ExportError(f"{where} has objects but no lookup manifest: it is not of this version")
        done = 0
        if MANIFEST_PATH not in stored:
            try:
                send(MANIFEST_PATH, is_new=True)
            except ObjectExists:
                # Another upload has written the manifest since the listing; or this upload has, and the store's answer
                # was lost. Either way, _check_same() compares the stored manifest.
                stored = {one.path: one for one in store.objects(name)}
        if MANIFEST_PATH in stored:
            _check_same(artifact, store, name, stored[MANIFEST_PATH])
        done = files[MANIFEST_PATH]
        for path in files:
            if path not in (MANIFEST_PATH, SAVED_MODEL):
                if path not in stored or stored[path].num_bytes != files[path]:
                    send(path)
                done += files[path]
                progress(done, total)
        sizes = {one.path: one.num_bytes for one in store.objects(name)}
        wrong = [path for path in files if path != SAVED_MODEL and sizes.get(path) != files[path]]
        if wrong:
            raise ExportError(f"{where}: the store lists {wrong[0]} with another size than was sent; repeat the upload")
        if sizes.get(SAVED_MODEL) != files[SAVED_MODEL]:
            send(SAVED_MODEL)
        progress(total, total)
    except StoreError as error:
        raise ExportError(f"cannot write {where}: {error.text}") from error
    except OSError as error:
        raise ExportError(f"cannot read {artifact}: {error}") from error
    return Uploaded(where, sent_objects, sent_bytes, total)


def _files(artifact: Path) -> dict[str, int]:
    check_saved_model(artifact)
    manifest = check_described(artifact)
    found = {path.relative_to(artifact).as_posix(): path for path in sorted(artifact.rglob("*")) if path.is_file()}
    for path, size in manifest.files.items():
        if path not in found or found[path].stat().st_size != size:
            raise ExportError(f"{artifact} is not complete: {path} is missing or has not the size in the manifest")
    # Not uploaded: files that the manifest does not list and whose own name, or a folder's name, begins with a point.
    # They are temporary files of other programs.
    return {
        path: file.stat().st_size
        for path, file in found.items()
        if path in manifest.files or not any(part.startswith(".") for part in Path(path).parts)
    }


def _check_same(artifact: Path, store: ObjectStore, name: str, manifest: StoredObject) -> None:
    ours = (artifact / MANIFEST_PATH).read_bytes()
    if manifest.num_bytes != len(ours) or store.read(name, manifest, 0, manifest.num_bytes) != ours:
        raise ExportError(f"{store.uri}/{name} is another version; a version is never overwritten: give --version")


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
