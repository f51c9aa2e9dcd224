"""Removes journals of versions that are gone: the version's folder does not exist, and a newer version does.

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
from pathlib import Path
from typing import NamedTuple

from service.artifact.delta_file import sync_folder
from service.artifact.delta_journal import model_folder

logger = logging.getLogger(__name__)

# Seconds for which a version must be missing: longer than its folder is away while somebody replaces it, or until a
# failed mount comes back.
GONE_S = 600.0
_NAME = re.compile(r"(\d+)-[0-9a-f]{16}\.journal", re.ASCII)


class _Journal(NamedTuple):
    """A journal's file as one scan found it.

    It differs from the next scan's if a process wrote to the file meanwhile.
    """

    name: str
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> _Journal:
        """Returns the description of a journal's file from its name and stat."""
        return cls(name, found.st_ino, found.st_mtime_ns, found.st_size)


class JournalPruning:
    """Removes the journals of versions that have been gone for GONE_S seconds.

    Concurrency: one caller at a time for each model; other processes may prune the same folder.

    Args:
      folder: the folder of the journals of all models.
      clock: seconds, monotonic.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        # Model -> journal -> the time since when the journal's version is missing.
        self._since_s: dict[str, dict[_Journal, float]] = {}

    def looked(self, model: str, versions: Collection[int] | None) -> None:
        """Removes a model's journals whose version has been gone for GONE_S.

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
            # Another process has removed the journal already, or this one may not read it.
            return
        try:
            # A writer of the journal holds the same lock, so nothing is appended between this check and the removal.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened = _Journal.of(journal.name, os.fstat(descriptor))
            if journal == opened == _Journal.of(journal.name, os.stat(path, follow_symlinks=False)):
                os.unlink(path)
                sync_folder(path.parent)
                extra = {"model": model, "version": version, "path": str(path), "bytes": journal.size}
                logger.info("removed the journal of a version that is gone", extra=extra)
        except FileNotFoundError:
            return
        except OSError as error:
            extra = {"model": model, "version": version, "path": str(path), "reason": str(error)}
            logger.warning("the journal of a version that is gone can not be removed", extra=extra)
        finally:
            os.close(descriptor)
