"""Mirrors one model's versions from an object store: lists all, fetches wanted versions, removes unwanted local copies.

A listing or a fetch that fails takes nothing away: the watcher goes on with what is loaded, and the mirror tries again.
"""

from __future__ import annotations

import errno
import logging
import random
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.artifact.completeness import Fingerprint, fingerprint
from service.engine.base_paths import find_versions, same_number, version_number
from service.errors import ArtifactError, NotReady, ServiceError
from service.stores.cache import Cache
from service.stores.fetch import Fetch, bring_deltas, read_record
from service.stores.object_store import ObjectStore, StoredObject, StoreError

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0
_TELL_EACH_S = 10.0


@dataclass(slots=True)
class _Job:
    """The state of one attempt to fetch a version. again_at_s: time when the next attempt may begin, after the end of
    this one.
    """

    fetch: Fetch | None = None
    state: str = "WAITING"
    error: ServiceError | None = None
    is_told: bool = False
    is_over: bool = False
    is_stopped: bool = False
    attempts: int = 0
    again_at_s: float = 0.0


@dataclass(slots=True)
class Counts:
    """Counts of what one model's mirror did in its object store. read_bytes: bytes that were read from objects."""

    read_bytes: int = 0
    listings: int = 0
    failures: int = 0
    fetched: int = 0


class Arrival:
    """The watcher of a version until all its files are fetched from the object store."""

    def __init__(self, mirror: Mirror, version: int, folder: Path) -> None:
        self.folder = folder
        self._mirror = mirror
        self._version = version

    @property
    def seen(self) -> Fingerprint:
        """A fingerprint of the version's local folder; the value changes when files are fetched into the folder."""
        return fingerprint(self.folder)

    def is_complete(self) -> bool:
        """Says whether all files of the version are in its local folder. May start a fetch or raise as Mirror.has."""
        return self._mirror.has(self._version)


@dataclass(eq=False)
class Mirror:
    """The mirror of a model's versions below one URI; implements engine.version_source.VersionSource.

    Concurrency: the watcher's thread calls; each version is fetched by a thread of its own, one after the other.

    wake: called when a fetch has ended. poll_s: between two listings; settle_s: for which the listing of a version
    without a manifest must not have changed. clock: seconds, monotonic.
    """

    model: str
    store: ObjectStore
    folder: Path
    cache: Cache
    wake: Callable[[], None]
    poll_s: float
    settle_s: float
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    problem: str = ""
    is_local: bool = False
    notes: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names: dict[int, str] | None = None
        self._list_at_s = 0.0
        self._jobs: dict[int, _Job] = {}
        self._settling: dict[int, tuple[Sequence[StoredObject], float]] = {}
        self._turn = threading.Lock()
        self._list_failures = 0
        # If an earlier process ended while it removed a version's folder, the renamed folder is left; it is removed
        # now.
        for left in [*self.folder.glob(".removed-*"), *self.folder.glob(".outdated-*")]:
            shutil.rmtree(left, ignore_errors=True)

    def find(self) -> Mapping[int, Path]:
        """Returns version -> local folder, for the versions in the store, whether fetched or not.

        The store is listed once in poll_s. If the store can not be listed, or lists nothing, the last listing stays in
        force. Before the first listing, the server serves the versions that an earlier process has fetched.

        Raises:
          StoreError: it can not be listed, and nothing is known of it.
        """
        if self.clock() >= self._list_at_s:
            self._list()
        if self._names is None:
            fetched = self._fetched()
            if not fetched:
                raise StoreError(0, self.problem)
            return fetched
        return {version: self._path(version) for version in self._names}

    def _list(self) -> None:
        self.counts.listings += 1
        try:
            names: dict[int | None, list[str]] = {}
            for name in sorted(self.store.folders()):
                names.setdefault(version_number(name), []).append(name)
            # If a portal or a proxy sends a web page in place of the store's listing, obstore reads the page as an
            # empty listing. An empty listing must not unload the model's versions.
            if not names.keys() - {None} and (self._names or self._fetched()):
                raise StoreError(errno.ENOENT, "the store lists no versions any more; the versions before stay")
        except StoreError as error:
            self._list_failures += 1
            self.counts.failures += 1
            self._list_at_s = self.clock() + self._wait_s(self._list_failures)
            if self.problem != error.text:
                self.problem = error.text
                logger.warning("store can not be listed", extra=self._named(reason=self.problem))
            return
        if self.problem:
            logger.info("store is listed again", extra=self._named())
        self.problem, self._list_failures = "", 0
        self._names = {version: given[-1] for version, given in names.items() if version is not None}
        self.notes = {
            version: same_number(given) for version, given in names.items() if version is not None and len(given) > 1
        }
        self._list_at_s = self.clock() + self._jittered(self.poll_s)
        for version, job in self._jobs.items():
            if job.is_over and job.state == "HERE" and version in self._names and not self._is_fetching(version):
                name = self._thread_name(version)
                threading.Thread(target=self._bring_deltas, args=(version,), name=name, daemon=True).start()

    def _bring_deltas(self, version: int) -> None:
        name = (self._names or {}).get(version, str(version))
        try:
            read_bytes = bring_deltas(self.store, name, self._path(version), self.cache)
        except (OSError, ServiceError) as error:
            self.counts.failures += 1
            reason = error.text if isinstance(error, StoreError) else str(error)
            logger.warning("deltas can not be fetched", extra=self._named(version, reason))
            return
        self.counts.read_bytes += read_bytes
        if read_bytes:
            logger.info("fetched deltas", extra=self._named(version, bytes=read_bytes))

    def _fetched(self) -> dict[int, Path]:
        local = find_versions(self.folder)
        return {version: path for version, path in local.items() if read_record(path) is not None}

    def unreadable(self, error: OSError) -> str:
        """Returns one line that says why the folders below the store's URI can not be listed."""
        return f"cannot read {self.store.uri}: {error.strerror}"

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line that says why the object store has no version that the model's policy wants."""
        if found:
            return f"none of the versions it is configured for is in {self.store.uri}"
        return f"no version folder (an integer name such as 1) below {self.store.uri}"

    def arrival(self, version: int, path: Path) -> Arrival:
        """Returns the Arrival of a version, which says whether all files of the version are fetched."""
        return Arrival(self, version, path)

    def has(self, version: int) -> bool:
        """Says whether a version is completely fetched; starts a fetch if due. Raises a failed fetch's error once."""
        job = self._jobs.get(version)
        if job is None or (job.is_over and self.clock() >= job.again_at_s):
            attempts = 0 if job is None or job.error is None else job.attempts
            job = self._jobs[version] = _Job(attempts=attempts)
            name = self._thread_name(version)
            threading.Thread(target=self._run, args=(version, job), name=name, daemon=True).start()
        if not job.is_over:
            return False
        if job.error is not None and not job.is_told:
            job.is_told = True
            raise job.error
        return job.state == "HERE"

    def keep(self, versions: Collection[int]) -> None:
        """Ends fetches and removes local copies of all versions but the given ones, which include all loaded ones."""
        for version in self._jobs.keys() - set(versions):
            self._jobs.pop(version).is_stopped = True
            self._settling.pop(version, None)
        for path in self.folder.iterdir():
            number = version_number(path.name.removeprefix(".fetching-"))
            if number is None or number in versions or self._is_fetching(number):
                continue
            # The folder is renamed before it is removed, so that a partly removed version does not look complete after
            # a restart.
            removed = path.with_name(f".removed-{path.name}")
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
            logger.info("removed from the cache", extra=self._named(version=number))

    def status(self) -> dict[str, Any]:
        """Returns the mirror's state for the status page, as a dict that can be written as JSON."""
        jobs = sorted(self._jobs.items(), reverse=True)
        return {
            "model": self.model,
            "uri": self.store.uri,
            "folder": str(self.folder),
            "problem": self.problem,
            "versions": [
                {
                    "version": version,
                    "state": job.state,
                    "message": job.error.message if job.error else "",
                    "done_bytes": job.fetch.done_bytes if job.fetch else 0,
                    "num_bytes": job.fetch.num_bytes if job.fetch else 0,
                }
                for version, job in jobs
            ],
        }

    def _is_fetching(self, version: int) -> bool:
        return any(thread.name == self._thread_name(version) for thread in threading.enumerate())

    def _thread_name(self, version: int) -> str:
        return f"fetch-{self.folder.name}-{version}"

    def _run(self, version: int, job: _Job) -> None:
        try:
            with self._turn:
                self._bring(version, job)
        finally:
            job.is_over = True
            self.wake()

    def _bring(self, version: int, job: _Job) -> None:
        target = self._path(version)
        name = (self._names or {}).get(version, str(version))
        fetch = job.fetch = Fetch(
            self.store,
            name,
            target,
            self.folder / f".fetching-{version}",
            cache=self.cache,
            has_settled=lambda objects: self._has_settled(version, objects),
            is_stopped=lambda: job.is_stopped,
        )
        job.state, started_s = "FETCHING", self.clock()
        over = threading.Event()
        threading.Thread(target=self._tell, args=(version, fetch, over), name="fetch-progress", daemon=True).start()
        try:
            is_here = fetch.bring()
            if is_here and not fetch.read_bytes:
                # An earlier process has fetched the version. Fetch the deltas that came later before the version is
                # loaded.
                self._bring_deltas(version)
            job.state = "HERE" if is_here else "INCOMPLETE"
            job.again_at_s = self.clock() + self._jittered(self.poll_s)
            if version in self._settling and job.state != "HERE":
                job.again_at_s = self.clock() + self.settle_s
        except StoreError as error:
            if read_record(target) is not None:
                # The store can not be read, but the cache folder has the whole version, maybe from an earlier process,
                # so the version can be served.
                job.state, job.again_at_s = "HERE", self.clock() + self._jittered(self.poll_s)
                logger.warning("store can not be asked about a version", extra=self._named(version, error.text))
            else:
                self._failed(version, job, NotReady(f"version {version} of {self.store.uri}: {error.text}"))
        except ServiceError as error:
            self._failed(version, job, error)
        except Exception as error:
            logger.exception("fetch failed", extra=self._named(version))
            self._failed(version, job, ArtifactError(f"version {version} of {self.store.uri}: {error}"))
        finally:
            over.set()
            self.counts.read_bytes += fetch.read_bytes
        if job.state == "HERE" and fetch.read_bytes:
            self.counts.fetched += 1
            seconds = round(self.clock() - started_s, 3)
            logger.info("fetched", extra=self._named(version, bytes=fetch.read_bytes, seconds=seconds))

    def _failed(self, version: int, job: _Job, error: ServiceError) -> None:
        job.attempts += 1
        wait_s = self._wait_s(job.attempts)
        job.state, job.error, job.again_at_s = "FAILED", error, self.clock() + wait_s
        self.counts.failures += 1
        extra = self._named(version, error.message, retry_in_s=round(wait_s, 1))
        logger.warning("fetch failed", extra=extra)

    def _has_settled(self, version: int, objects: Sequence[StoredObject]) -> bool:
        seen, since_s = self._settling.get(version, (None, 0.0))
        if seen != objects:
            self._settling[version] = (objects, self.clock())
            return self.settle_s <= 0
        return self.clock() - since_s >= self.settle_s

    def _tell(self, version: int, fetch: Fetch, over: threading.Event) -> None:
        while not over.wait(_TELL_EACH_S):
            extra = self._named(version, done_bytes=fetch.done_bytes, num_bytes=fetch.num_bytes)
            logger.info("fetching", extra=extra)

    def _path(self, version: int) -> Path:
        return self.folder / str(version)

    def _named(self, version: int | None = None, reason: str = "", **more: object) -> dict[str, Any]:
        named = {"model": self.model, "uri": self.store.uri, "version": version, "reason": reason}
        return {name: value for name, value in named.items() if value not in (None, "")} | more

    def _wait_s(self, attempts: int) -> float:
        return self._jittered(min(_FIRST_WAIT_S * 2 ** (attempts - 1), _MAX_WAIT_S, max(self.poll_s, _FIRST_WAIT_S)))

    def _jittered(self, wait_s: float) -> float:
        # Each wait is made up to 20 % shorter or longer at random, so that the servers that read one bucket do not all
        # send their requests at the same moment.
        return wait_s * random.uniform(0.8, 1.2)
