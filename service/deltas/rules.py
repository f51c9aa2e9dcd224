"""Declares the server's rules for deltas, and removes the journals of versions whose folders are gone.

A version that was only unloaded has its folder, and may be loaded again. If a model's folder can not be read, its
versions are not known. A failed mount can show an empty folder. So a journal is removed only after its version was
missing at every scan for GONE_S seconds, and nobody wrote to the journal meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from service.artifact.delta_file import DELTAS_FOLDER, DeltaFault, fingerprint_of
from service.artifact.delta_journal import Journal, journal_path, model_folder
from service.artifact.files import sync
from service.deltas.overlay import Overlay
from service.deltas.version_deltas import Target, VersionDeltas


@dataclass(frozen=True, slots=True)
class DeltaRules:
    """The rules for the deltas of all versions: the journals' folder and limits; makes the VersionDeltas of a version.

    journal_folder: None: upserts are refused.
    max_file_bytes: of one delta; max_journal_bytes: of one version's journal.
    wake: called when an upsert is on disk.
    """

    journal_folder: Path | None
    max_file_bytes: int
    max_journal_bytes: int
    wake: Callable[[], None]

    def follow(self, target: Target, overlay: Overlay) -> VersionDeltas:
        return VersionDeltas(
            target,
            overlay,
            journal=None if self.journal_folder is None else partial(self._journal, target, self.journal_folder),
            max_bytes=self.max_file_bytes,
            wake=self.wake,
        )

    def may_have(self, model: str, version: int, artifact: Path) -> bool:
        """Returns False only if a version surely has neither a folder of deltas nor a journal; raises ArtifactError.

        The check finds out whether a journal or a folder of deltas exists; it reads neither.
        """
        places = [artifact / DELTAS_FOLDER]
        if self.journal_folder is not None:
            places.append(journal_path(self.journal_folder, model, version, fingerprint_of(artifact)))
        return not all(map(_is_absent, places))

    def _journal(self, target: Target, folder: Path, refused: Callable[[DeltaFault, str], None]) -> Journal:
        return Journal(
            journal_path(folder, target.model, target.version, target.fingerprint),
            max_bytes=self.max_journal_bytes,
            max_record_bytes=self.max_file_bytes,
            refused=refused,
        )


def _is_absent(place: Path) -> bool:
    try:
        place.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


logger = logging.getLogger(__name__)

# Seconds for which a version's folder must be missing before its journal is removed: longer than a folder is away while
# somebody replaces it, or while a failed mount comes back.
GONE_S = 600.0
_NAME = re.compile(r"(\d+)-[0-9a-f]{16}\.journal", re.ASCII)


class _Journal(NamedTuple):
    """Name, inode, mtime and size of a journal file at one scan.

    They differ at the next scan if a process wrote to the file between the scans.
    """

    name: str
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> _Journal:
        return cls(name, found.st_ino, found.st_mtime_ns, found.st_size)


class JournalPruning:
    """The remover of journals whose version's folder is missing for GONE_S seconds while a newer version has one.

    Concurrency: one caller at a time for each model; other processes may prune the same folder.

    Args:
      folder: the folder of the journals of all models.
      clock: seconds, monotonic.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        # Model -> journal -> the time at which the journal's version was first found missing.
        self._since_s: dict[str, dict[_Journal, float]] = {}

    def looked(self, model: str, versions: Collection[int] | None) -> None:
        """Removes each journal of a model whose version has been gone for GONE_S seconds, if a newer version exists.

        Called after each scan of the model's folder.

        Args:
          versions: the versions that have a folder or are loaded; None: the model's folder could not be read.
        """
        try:
            orphans = self._orphans(model, versions) if versions else {}
        except OSError as error:
            logger.warning("a folder of journals can not be read", extra={"model": model, "reason": str(error)})
            orphans = {}
        now_s, before = self._clock(), self._since_s.get(model, {})
        since_s = {journal: before.get(journal, now_s) for journal in orphans}
        for journal, version in orphans.items():
            if now_s - since_s[journal] >= GONE_S:
                self._remove(model, version, journal)
                del since_s[journal]
        if since_s:
            self._since_s[model] = since_s
        else:
            self._since_s.pop(model, None)

    def _orphans(self, model: str, versions: Collection[int]) -> dict[_Journal, int]:
        newest, found = max(versions), {}
        try:
            entries = os.scandir(model_folder(self._folder, model))
        except FileNotFoundError:
            return {}
        with entries:
            for entry in entries:
                name = _NAME.fullmatch(entry.name)
                version = int(name[1]) if name else newest
                if version < newest and version not in versions and entry.is_file(follow_symlinks=False):
                    found[_Journal.of(entry.name, entry.stat(follow_symlinks=False))] = version
        return found

    def _remove(self, model: str, version: int, journal: _Journal) -> None:
        path = model_folder(self._folder, model) / journal.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            # The journal is left alone if it can not be opened: another process has removed it already, or this process
            # may not read it.
            return
        try:
            # Each writer of the journal takes the same file lock, so no process appends to the journal between the
            # check and the removal.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened = _Journal.of(journal.name, os.fstat(descriptor))
            if journal == opened == _Journal.of(journal.name, os.stat(path, follow_symlinks=False)):
                os.unlink(path)
                sync(path.parent)
                extra = {"model": model, "version": version, "path": str(path), "bytes": journal.size}
                logger.info("removed the journal of a version that is gone", extra=extra)
        except FileNotFoundError:
            return
        except OSError as error:
            extra = {"model": model, "version": version, "path": str(path), "reason": str(error)}
            logger.warning("the journal of a version that is gone can not be removed", extra=extra)
        finally:
            os.close(descriptor)
