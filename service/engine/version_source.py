"""Where a model's versions come from: a mounted folder, or something that fills a local folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from service.artifact import completeness
from service.artifact.completeness import Fingerprint
from service.engine import base_paths


class VersionArrival(Protocol):
    """Watches one version from when it was first seen until all of it is here.

    folder: the version's local folder. seen: what was in it at the last look.
    """

    @property
    def folder(self) -> Path:
        """The version's local folder."""

    @property
    def seen(self) -> Fingerprint:
        """Fingerprint of the folder at the last look."""

    def is_complete(self) -> bool:
        """Looks again; raises ServiceError where the version can not be brought here for now."""


class VersionSource(Protocol):
    """The versions of one model below one base path. Concurrency: one caller at a time."""

    def find(self) -> Mapping[int, Path]:
        """Returns the local folder of each version, whether or not the version is in it already; raises OSError."""

    def unreadable(self, error: OSError) -> str:
        """Returns one line for a base path whose find() raised."""

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line for a base path without a version that the model's policy wants."""

    def arrival(self, version: int, path: Path) -> VersionArrival:
        """Returns what watches a version until all of it is here."""

    def keep(self, versions: Collection[int]) -> None:
        """Says that no other version is loaded or wanted, so a source may remove its local copies of them."""


# Opens the source of a URI: told the model's name, its base path, and what to call when a version has come.
OpenStore = Callable[[str, str, Callable[[], None]], VersionSource]


class Folder:
    """A mounted folder, which the server only reads.

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

    def find(self) -> Mapping[int, Path]:
        """Returns the folder of each version below the base path; raises OSError."""
        return base_paths.find_versions(Path(self._base_path))

    def unreadable(self, error: OSError) -> str:
        """Returns one line for a base path that could not be read."""
        return base_paths.unreadable(self._base_path, error)

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line for a base path whose versions the model's policy does not want."""
        return base_paths.unserved(self._base_path, found)

    def arrival(self, version: int, path: Path) -> VersionArrival:
        """Returns an object that watches a version's folder until its files no longer change."""
        return completeness.Arrival(path, self._settle_s, self._clock, self._wall_clock)

    def keep(self, versions: Collection[int]) -> None:
        """Removes nothing: the folder is not the server's."""
