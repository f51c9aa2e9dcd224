"""Removes journals of versions that are gone: no folder of that number is left, and a newer version is there.

A version that was merely unloaded has its folder still and may be loaded again; nothing is known of one whose model's
folder can not be read; and a mount that failed shows a folder that is empty. So a journal goes only once it was without
its version for a while, at every look, and nobody wrote to it meanwhile.
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

# Longer than a version's folder is away while somebody puts another in its place, or a mount comes back.
GONE_S = 600.0
_NAME = re.compile(r"(\d+)-[0-9a-f]{16}\.journal", re.ASCII)


class _Journal(NamedTuple):
    """A journal's file at one look; it differs from the next look's where a process wrote to the file meanwhile."""

    name: str
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> _Journal:
        """Returns a file as stat found it."""
        return cls(name, found.st_ino, found.st_mtime_ns, found.st_size)


class JournalPruning:
    """Removes the journals of versions that are gone.

    Concurrency: each model by one caller at a time; other processes may do the same with the same folder.

    Args:
      folder: holds the journals of all models.
      clock: seconds, monotonic.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        # For each model: the time since when each journal is without its version.
        self._since_s: dict[str, dict[_Journal, float]] = {}

    def looked(self, model: str, versions: Collection[int] | None) -> None:
        """Removes the journals whose version has been gone for GONE_S, given a model's versions at this look.

        Args:
          versions: the versions that have a folder or are loaded; None: the model's folder could not be read.
        """
        try:
            orphans = self._orphans(model, versions) if versions else {}
        except OSError as error:
            logger.warning("journals can not be looked at", extra={"model": model, "reason": str(error)})
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
            # Another process was first, or may do it.
            return
        try:
            # A writer of the journal holds the same lock, so nothing is appended between this look and the removal.
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
