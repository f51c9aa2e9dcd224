"""Reads one model's base path: which versions it has, whether their files have arrived, and whether they were replaced.

Each read of a version's folder has a timeout, because a mount whose server is gone does not answer.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from service.artifact.completeness import Fingerprint, Identity, fingerprint, fits_manifest, identity, is_replaced
from service.errors import ServiceError
from service.versions.loads import Attempt, Folder, LoadRules, TimeIsOver, VersionArrival, VersionSource
from service.versions.model_config import ModelConfig, is_in_store

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Shortest wait, in seconds, until the next scan, because the poller ignores a wait of 0.
SHORTEST_WAIT_S = 0.01
_NO_ANSWER = "its file system does not answer"


class LoadedFiles(NamedTuple):
    """The files from which a version was loaded, as they were before the load; they may have changed since."""

    path: Path
    seen: Fingerprint
    identity: Identity


class Scan(NamedTuple):
    """A scan of a model's base path: the folder of each version, and the files in the folders of loaded versions.

    notes: version -> one line on what is odd about the place of its files.
    """

    folders: Mapping[int, Path]
    identities: Mapping[int, Identity]
    notes: Mapping[int, str]


class Scanned(NamedTuple):
    """The result of a scan of a model's folder under a configuration; scan: None if the folder can not be read.

    problem: why the folder can not be read. damages: version -> damage of the files of loaded versions.
    """

    config: ModelConfig | None
    scan: Scan | None
    problem: str = ""
    damages: Mapping[int, str] = MappingProxyType({})


_NO_FOLDER = Scan({}, {}, {})


def unanswered(config: ModelConfig | None) -> Scanned:
    if config is None:
        return Scanned(None, _NO_FOLDER)
    return Scanned(config, None, f"cannot read the folder {config.base_path}: {_NO_ANSWER}")


class ModelFolder:
    """The base path of one model, or its place in an object store. Concurrency: one caller at a time, except folders.

    folders: version -> folder, as the last scan found them; any thread may read this mapping.

    Args:
      look_again: called when an object store has fetched a version.
    """

    def __init__(self, model: str, rules: LoadRules, look_again: Callable[[], None]) -> None:
        self._model = model
        self._rules = rules
        self._look_again = look_again
        self.folders: Mapping[int, Path] = {}
        self._source: tuple[str, VersionSource] | None = None
        self._arrivals: dict[int, VersionArrival] = {}
        # The time of the first of the scans in a row that found the base path readable and without versions.
        self._empty_since_s: float | None = None
        # Reads of folders that were given up after their timeout and may still hang, by path.
        self._late: dict[Path, Attempt[Any]] = {}

    @property
    def source(self) -> VersionSource:
        assert self._source is not None
        return self._source[1]

    def open(self, base_path: str) -> VersionSource:
        """Returns the source of the versions below a base path; raises ServiceError if its store can not be opened."""
        if self._source is None or self._source[0] != base_path:
            rules = self._rules
            source: VersionSource = Folder(base_path, rules.settle_s, rules.clock, rules.wall_clock)
            if rules.open_store is not None and is_in_store(base_path):
                source = rules.open_store(self._model, base_path, self._look_again)
            self._source = base_path, source
            # Objects that watch version folders of the former base path are dropped: versions in the new base path get
            # new ones.
            self._arrivals.clear()
        return self._source[1]

    def scan(self, config: ModelConfig | None, loaded: Collection[int], damages: Mapping[int, str]) -> Scanned:
        """Reads the base path of a configuration, which None lacks; may hang, and changes nothing but the source."""
        if config is None:
            return Scanned(None, _NO_FOLDER, "", damages)
        try:
            source = self.open(config.base_path)
        except ServiceError as error:
            return Scanned(config, None, error.message, damages)
        try:
            folders = source.find()
        except OSError as error:
            return Scanned(config, None, source.unreadable(error), damages)
        identities = {version: identity(folders[version]) for version in loaded if version in folders}
        return Scanned(config, Scan(folders, identities, source.notes), "", damages)

    def note(self, found: Scan | None) -> None:
        if found is None:
            self._empty_since_s = None
            return
        self.folders = found.folders
        if found.folders:
            self._empty_since_s = None
        for version in self._arrivals.keys() - found.folders.keys():
            del self._arrivals[version]

    def empty_left_s(self) -> float:
        """Returns the seconds until the base path counts as empty; 0 if it does now, or has versions. After a scan.

        A base path that is being removed is empty for a moment. So two scans, settle_s apart, must find no version.
        """
        if self.folders:
            return 0
        now_s = self._rules.clock()
        if self._empty_since_s is None:
            self._empty_since_s = now_s
            return max(self._rules.settle_s, SHORTEST_WAIT_S)
        return max(self._empty_since_s + self._rules.settle_s - now_s, 0)

    def has_arrived(self, version: int, path: Path) -> bool:
        arrival = self._arrivals.get(version)
        if arrival is None or arrival.folder != path:
            arrival = self._within_time(path, partial(self.source.arrival, version, path))
            self._arrivals[version] = arrival
        return self._within_time(path, arrival.is_complete)

    def seen(self, version: int) -> Fingerprint:
        return self._arrivals[version].seen

    def forget(self, version: int) -> None:
        self._arrivals.pop(version, None)

    def keep(self, versions: Collection[int]) -> None:
        if self._source is not None:
            self._source[1].keep(versions)

    def is_mended(self, version: int, path: Path, damaged: Fingerprint) -> bool:
        try:
            if self._within_time(path, partial(fingerprint, path)) == damaged:
                return False
            # An object store's version is fetched anew, which its arrival watches once the version is wanted again.
            return not self.source.is_local or (
                self.has_arrived(version, path) and self._within_time(path, partial(fits_manifest, path)) is not False
            )
        except TimeoutError:
            return False

    def damaged(self, loaded: LoadedFiles) -> Fingerprint:
        """Returns the fingerprint that the folder of a damaged version must not have, so that it is loaded again.

        If other files lie in it already, the version was overwritten as a whole, and it is the fingerprint before the
        load. If only tables have changed, no version that was exported is known to be there until a later change.
        """

        def look() -> tuple[Fingerprint, Identity]:
            # In this order: a file that is written in between must not get into the fingerprint unnoticed.
            return fingerprint(loaded.path), identity(loaded.path)

        try:
            seen, files = self._within_time(loaded.path, look)
        except TimeoutError:
            return loaded.seen
        return loaded.seen if is_replaced(loaded.identity, files) else seen

    def _within_time(self, folder: Path, look: Callable[[], T]) -> T:
        """Runs a function that reads a folder, with a timeout.

        Raises TimeoutError after the timeout, and at once while an earlier read of the folder still hangs.
        """
        earlier = self._late.get(folder)
        if earlier is None or earlier.is_over:
            attempt = Attempt(f"look-{self._model}", look)
            try:
                return attempt.result(self._rules.look_timeout_s)
            except TimeIsOver:
                self._late[folder] = attempt
                logger.warning("a folder does not answer", extra={"model": self._model, "path": str(folder)})
        raise TimeoutError(errno.ETIMEDOUT, _NO_ANSWER)
