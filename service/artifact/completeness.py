"""Tells whether a version folder has been copied completely, and holds nothing but files that may be read.

A manifest lists the size of every file, so a folder with a manifest is known to be complete at once. A folder without
one counts as complete when nothing in it has changed for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.artifact.files import strange_kind
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The names, inodes, sizes and change times of all that lies in a folder, compared to see whether it changes."""

    entries: frozenset[tuple[str, int, int, int]]
    changed_at_s: float


def fingerprint(folder: Path) -> Fingerprint:
    """Returns the Fingerprint of a folder and of all below it; files that vanish during the scan are left out."""
    entries: set[tuple[str, int, int, int]] = set()
    newest_ns = 0
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            try:
                found = os.stat(path)
            except OSError:
                continue
            # A folder's fingerprint has the ctime of its files and not their mtime, because copying tools give a copy
            # the mtime of its original. It has the inode too, because two files written within one tick of the clock
            # have the same ctime.
            entries.add((os.path.relpath(path, folder), found.st_ino, found.st_size, found.st_ctime_ns))
            newest_ns = max(newest_ns, found.st_ctime_ns)
    return Fingerprint(frozenset(entries), newest_ns / 1e9)


def fits_manifest(folder: Path) -> bool | None:
    """Says whether a version folder has all files that its manifest lists, each with the listed size.

    Returns None without a manifest, with one that can not be read, and with one that lists no files.
    """
    try:
        manifest = Manifest.read(folder)
    except (ArtifactError, OSError):
        return None
    if manifest is None or not manifest.files:
        return None
    try:
        return all((folder / name).stat().st_size == num_bytes for name, num_bytes in manifest.files.items())
    except OSError:
        return False


# The files that tell one version from another in the same folder: a change of any number of a version changes the
# index of its variables, which has their checksums.
_TELLING_FILES = ("saved_model.pb", "saved_model.pbtxt", "variables/variables.index", MANIFEST_PATH)
# Device, inode, size and time of the last change of each of these files; None for a missing file.
Identity = tuple[tuple[int, int, int, int] | None, ...]


def identity(folder: Path) -> Identity:
    """Returns which files lie in a version folder; cheap, as it is read at each scan of a served version.

    Unlike a Fingerprint, it is the same after a file's owner, mode or number of links have changed, and after deltas
    were put into the folder.
    """
    found: list[tuple[int, int, int, int] | None] = []
    for name in _TELLING_FILES:
        try:
            stat = os.stat(f"{folder}/{name}")
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def is_replaced(served: Identity, now: Identity) -> bool:
    return any(file is not None and file != before for before, file in zip(served, now, strict=True))


class Arrival:
    """The watcher of one version folder that may still be being copied. Concurrency: one caller at a time.

    seen: the folder's fingerprint when is_complete() last read it.

    Args:
      settle_s: seconds without a change after which a folder without a manifest is complete; 0: every folder is.
      clock: seconds, monotonic.
      wall_clock: seconds since 1970, comparable with the files' change times.
    """

    def __init__(
        self, folder: Path, settle_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self._settle_s = settle_s
        self._clock = clock
        self.seen = fingerprint(folder)
        self._since_s = clock()
        # Only the first look at a version's folder compares the wall clock with the files' change times, so that a
        # folder that was copied long ago is complete at once. Later calls use the monotonic clock, so that a jump of
        # the wall clock can not make an unfinished copy look old.
        self._is_old = wall_clock() - self.seen.changed_at_s >= settle_s

    def is_complete(self) -> bool:
        now = fingerprint(self.folder)
        if now != self.seen:
            self.seen, self._since_s, self._is_old = now, self._clock(), False
        if self._settle_s <= 0 or fits_manifest(self.folder):
            return True
        return self._is_old or self._clock() - self._since_s >= self._settle_s


def check_tree(version: Path) -> None:
    """Raises ArtifactError if a version has a link that leads out of the model's folder, a pipe, a socket or a device.

    Without the check for links, a user who may add a version could make the server answer from any file that the server
    can read. The version's folder itself may be a link, and versions may share files. Without the check for pipes,
    TensorFlow would wait for a pipe's writer for ever.
    """
    roots = [os.path.realpath(version), os.path.realpath(version.absolute().parent)]
    for folder, folders, files in os.walk(version):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots):
                raise ArtifactError(f"{path.relative_to(version)} is a link out of the model's folder")
            try:
                kind = strange_kind(os.stat(path))
            except OSError:
                # A symbolic link to a missing file in a version's folder is an error only if the server reads the file.
                continue
            if kind:
                raise ArtifactError(f"{path.relative_to(version)} is {kind}, expected a file")
