"""Declares the source of a model's versions: a mounted folder, or a mirror of an object store with a local folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from service.artifact import completeness
from service.artifact.completeness import Fingerprint
from service.engine import base_paths


class VersionArrival(Protocol):
    """The watcher of one version's files, until all of them are in the local folder.

    folder: the version's local folder. seen: the folder's fingerprint at the last check.
    """

    @property
    def folder(self) -> Path:
        """The local folder that holds, or will hold, the version's files."""

    @property
    def seen(self) -> Fingerprint:
        """Fingerprint of the version's folder when it was last read."""

    def is_complete(self) -> bool:
        """Says whether all files of the version are in its folder; raises ServiceError if they can not be fetched."""


class VersionSource(Protocol):
    """Finder of one model's versions below a base path, local or remote. Concurrency: one caller at a time."""

    @property
    def is_local(self) -> bool:
        """Whether the arrival of a version fetches none of its files."""

    @property
    def notes(self) -> Mapping[int, str]:
        """Version -> one line on what is odd about the place of its files, at the last find()."""

    def find(self) -> Mapping[int, Path]:
        """Returns version -> local folder, also for versions whose files are not there yet; raises OSError."""

    def unreadable(self, error: OSError) -> str:
        """Returns one line for people that explains an OSError of find(), which could not read the base path."""

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line that says why the base path has no version that the model's policy wants."""

    def arrival(self, version: int, path: Path) -> VersionArrival:
        """Returns an object that watches a version until all its files are in the local folder."""

    def is_at_hand(self, version: int) -> bool:
        """Says whether the version can be loaded without waiting for files from elsewhere."""

    def keep(self, versions: Collection[int]) -> None:
        """Tells the VersionSource which versions are loaded or wanted; it may remove its local copies of others."""


# Type of a function that opens the source of a model's URI; its arguments are the model's name, the URI, and a function
# to call when a version was fetched.
OpenStore = Callable[[str, str, Callable[[], None]], VersionSource]


class Folder:
    """The version source of a mounted folder, which the server only reads.

    Args:
      settle_s, clock, wall_clock: as in Arrival.
    """

    def __init__(
        self, base_path: str, settle_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._base_path = base_path
        self._settle_s = settle_s
        self._clock = clock
        self._wall_clock = wall_clock
        self.is_local = True
        self.notes: Mapping[int, str] = {}

    def find(self) -> Mapping[int, Path]:
        """Returns version -> its folder below the base path; raises OSError."""
        found = base_paths.find_all_folders(Path(self._base_path))
        names = {version: [path.name for path in paths] for version, paths in found.items()}
        self.notes = {version: base_paths.same_number(given) for version, given in names.items() if len(given) > 1}
        return {version: paths[-1] for version, paths in found.items()}

    def unreadable(self, error: OSError) -> str:
        """Returns one line that says why the base path can not be read."""
        return base_paths.unreadable(self._base_path, error)

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line that says why the mounted folder has no version that the model's policy wants."""
        return base_paths.unserved(self._base_path, found)

    def arrival(self, version: int, path: Path) -> VersionArrival:
        """Returns an object that watches a version's folder until the version is completely copied."""
        return completeness.Arrival(path, self._settle_s, self._clock, self._wall_clock)

    def is_at_hand(self, version: int) -> bool:
        """Returns True: a mounted folder has all versions that are found in it."""
        return True

    def keep(self, versions: Collection[int]) -> None:
        """Does nothing, because the server may not remove versions from a mounted folder, which others own."""
