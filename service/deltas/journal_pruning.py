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

from service.artifact.delta_file import sync_folder
from service.artifact.delta_journal import model_folder

logger = logging.getLogger(__name__)

# Longer than a version's folder is away while somebody puts another in its place, or a mount comes back.
GONE_S = 600.0
_NAME = re.compile(r"(\d+)-[0-9a-f]{16}\.journal", re.ASCII)

# Name, and what tells that somebody wrote to it.
_Look = tuple[str, int, int, int]


class JournalPruning:
    """Concurrency: each model by one caller at a time; other processes may do the same with the same folder.

    Args:
      folder: of all journals.
      clock: seconds, monotonic.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        # Of each model, since when journals are without their version.
        self._since_s: dict[str, dict[_Look, float]] = {}

    def looked(self, model: str, versions: Collection[int] | None) -> None:
        """Takes what was found of a model, and removes what was without its version for long enough.

        Args:
          versions: that have a folder or are loaded; None: the model's folder could not be read.
        """
        try:
            orphans = self._orphans(model, versions) if versions else {}
        except OSError as error:
            logger.warning("journals can not be looked at", extra={"model": model, "reason": str(error)})
            orphans = {}
        now_s, before = self._clock(), self._since_s.get(model, {})
        since_s = {look: before.get(look, now_s) for look in orphans}
        for look, version in orphans.items():
            if now_s - since_s[look] >= GONE_S:
                self._remove(model, version, look)
                del since_s[look]
        if since_s:
            self._since_s[model] = since_s
        else:
            self._since_s.pop(model, None)

    def _orphans(self, model: str, versions: Collection[int]) -> dict[_Look, int]:
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
                    found[_look(entry.name, entry.stat(follow_symlinks=False))] = version
        return found

    def _remove(self, model: str, version: int, look: _Look) -> None:
        path = model_folder(self._folder, model) / look[0]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            # Another process was first, or may do it.
            return
        try:
            # Under the lock of whoever writes: what is appended from now on is appended to another file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if look == _look(look[0], os.fstat(descriptor)) == _look(look[0], os.stat(path, follow_symlinks=False)):
                os.unlink(path)
                sync_folder(path.parent)
                extra = {"model": model, "version": version, "path": str(path), "bytes": look[3]}
                logger.info("removed the journal of a version that is gone", extra=extra)
        except FileNotFoundError:
            return
        except OSError as error:
            extra = {"model": model, "version": version, "path": str(path), "reason": str(error)}
            logger.warning("the journal of a version that is gone can not be removed", extra=extra)
        finally:
            os.close(descriptor)


def _look(name: str, found: os.stat_result) -> _Look:
    return name, found.st_ino, found.st_mtime_ns, found.st_size
