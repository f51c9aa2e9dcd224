"""Whether a version folder has been copied to its end.

A manifest lists the size of every file, so an artifact of ours is known to be whole at once. Any other folder counts as
whole when nothing in it has changed for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.artifact.manifest import Manifest
from service.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Names, identities, sizes and times of all that is in a folder.

    changed_at_s: when the last file was written or renamed, by the file system's clock.
    """

    entries: frozenset[tuple[str, int, int, int]]
    changed_at_s: float


def fingerprint(folder: Path) -> Fingerprint:
    """Looks at a folder and all below it; what vanishes meanwhile is left out."""
    entries: set[tuple[str, int, int, int]] = set()
    newest_ns = 0
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            try:
                found = os.stat(path)
            except OSError:
                continue
            # ctime and not mtime: copying tools set the latter back to the original's.
            # The inode too: two files written at the same tick of the clock have one time.
            entries.add((os.path.relpath(path, folder), found.st_ino, found.st_size, found.st_ctime_ns))
            newest_ns = max(newest_ns, found.st_ctime_ns)
    return Fingerprint(frozenset(entries), newest_ns / 1e9)


def has_all_files(folder: Path) -> bool:
    """Whether there is a manifest and every file that it lists has its size."""
    try:
        manifest = Manifest.read(folder)
        return (
            manifest is not None
            and bool(manifest.files)
            and all((folder / name).stat().st_size == num_bytes for name, num_bytes in manifest.files.items())
        )
    except (ArtifactError, OSError):
        return False


class Arrival:
    """Watches one folder from when it was first seen. Concurrency: one caller at a time.

    seen: what was in it at the last look.

    Args:
      settle_s: how long nothing may have changed; 0: every folder is whole.
      clock: seconds, monotonic.
      wall_clock: seconds, as the file system has them.
    """

    def __init__(
        self, folder: Path, settle_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self._settle_s = settle_s
        self._clock = clock
        self.seen = fingerprint(folder)
        self._since_s = clock()
        # The one look by the file system's clock: what lies there since long ago need not wait. A jump of it later
        # on must not make a copy that is going on look old.
        self._is_old = wall_clock() - self.seen.changed_at_s >= settle_s

    def is_complete(self) -> bool:
        """Looks again."""
        now = fingerprint(self.folder)
        if now != self.seen:
            self.seen, self._since_s, self._is_old = now, self._clock(), False
        if self._settle_s <= 0 or has_all_files(self.folder):
            return True
        return self._is_old or self._clock() - self._since_s >= self._settle_s
