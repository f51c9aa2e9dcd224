"""Manages the local folder of versions that were fetched from object stores, with a limit on its size."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from service.artifact.durable_files import remove_folder
from service.errors import ArtifactError

# Bytes that fetched versions always leave free on the disk of the cache folder, whatever the limit of the folder is.
_SPARE_BYTES = 64 << 20


class CacheInUse(Exception):
    """The error that another server uses the cache folder; two servers would remove each other's versions."""


class Cache:
    """The cache folder --store_cache_dir, locked against other servers. Concurrency: any thread.

    Args:
      max_bytes: limit on the bytes of all versions in the folder, partly fetched ones included; 0: as much as the disk
      has.

    Raises:
      OSError: the folder can not be made or written.
      CacheInUse: another process has locked the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        # The lock file of the cache folder stays open, because its lock ends when it is closed, at the latest when the
        # process ends.
        self._lock_file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_file)
            raise CacheInUse(f"{folder} is the cache of another server; give each server its own") from None
        self._changing = threading.Lock()
        self._used: set[Path] = set()
        self._wanted: list[Callable[[], int]] = []

    def close(self) -> None:
        """Unlocks the folder --store_cache_dir, so that another server can use it."""
        os.close(self._lock_file)

    def folder_of(self, model: str, uri: str) -> Path:
        """Makes and returns the cache folder of a model; no other model or URI has the same folder."""
        digest = hashlib.sha256(f"{model}\n{uri}".encode()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9_-]", "_", model)[:50]
        path = self.folder / f"{name}-{digest}"
        with self._changing:
            path.mkdir(exist_ok=True)
            self._used.add(path)
        return path

    @contextmanager
    def reserved(self, missing: Callable[[], int], what: str) -> Iterator[None]:
        """Reserves cache space for the bytes of a version that were not fetched yet, within a `with` block.

        Args:
          missing: returns how many bytes were not fetched yet. what: name of the version for an error text.

        Raises:
          ArtifactError: the cache or the disk has not so many bytes left.
        """
        with self._changing:
            self._make_room(missing, what)
            self._wanted.append(missing)
        try:
            yield
        finally:
            with self._changing:
                self._wanted.remove(missing)

    def _make_room(self, missing: Callable[[], int], what: str) -> None:
        if self._has_room(missing):
            return
        # If the cache folder lacks space, the folders of models that are not served any more are removed from it.
        for path in self.folder.iterdir():
            if path.is_dir() and path not in self._used:
                remove_folder(path)
        if why := self._lack(missing()):
            raise ArtifactError(f"{what} needs {_mib(missing())} more in {self.folder}, {why}")

    def _has_room(self, missing: Callable[[], int]) -> bool:
        return not self._lack(missing())

    def _lack(self, needed: int) -> str:
        """Returns why the cache has no room for this many bytes: the bound, and all that counts against it; "" if it
        has.
        """
        others = sum(other() for other in self._wanted)
        reserved = f", {_mib(others)} are reserved for other versions" if others else ""
        if self._max_bytes:
            used = num_bytes_of(self.folder)
            if needed > (left := max(self._max_bytes - used - others, 0)):
                return (
                    f"and {_mib(left)} are left: it may have {_mib(self._max_bytes)} (--store_cache_mib), it has "
                    f"{_mib(used)}{reserved}"
                )
        free = shutil.disk_usage(self.folder).free
        if needed + others and needed > (left := max(free - _SPARE_BYTES - others, 0)):
            return (
                f"and {_mib(left)} are left: its disk has {_mib(free)} free, {_mib(_SPARE_BYTES)} of them stay free"
                f"{reserved}"
            )
        return ""


def num_bytes_of(folder: Path) -> int:
    """Returns the total size of all files below a folder, in bytes; files that vanish meanwhile are not counted."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
