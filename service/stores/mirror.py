"""Mirrors models' versions from object stores: lists all, fetches wanted versions, removes unwanted local copies.

A version in the cache folder is whole and was checked when it was fetched, so it is served at once: threads of the
mirror ask the store meanwhile. A listing or a fetch that fails takes nothing away: the watcher goes on with what is
loaded, and the mirror tries again.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.artifact.completeness import Fingerprint, fingerprint
from service.artifact.files import remove_folder, restore_folders
from service.errors import ArtifactError, NotReady, ServiceError
from service.stores.fetch import Cache, Fetch, Outcome, bring_deltas, read_record
from service.stores.object_store import ObjectStore, StoredObject, StoreError
from service.versions.model_config import find_versions, same_number, unserved, version_number

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0


@dataclass(slots=True)
class Counts:
    """Counts of what one model's mirror did in its object store. read_bytes: bytes that were read from objects."""

    read_bytes: int = 0
    listings: int = 0
    failures: int = 0
    fetched: int = 0


@dataclass(eq=False)
class Listing:
    """The last listing of a model's versions in an object store. Concurrency: the watcher's thread calls.

    An empty listing counts as a failure while versions are known: if a portal or a proxy sends a web page in place of
    the store's listing, obstore reads the page as an empty listing, and this must not unload the model's versions.

    Args:
      cached: returns the versions in the cache folder. wake: called when a listing has ended.
      poll_s: seconds between two listings. clock: seconds, monotonic. named: what log lines say of the mirror.

    Attributes:
      names: version -> name of its folder, by the last listing that did not fail; None before it.
      notes: version -> one line on folders for the same number. problem: why the last listing failed; "" if it did not.
      is_new: set by a listing that did not fail; whoever reads the listing clears the flag.
    """

    store: ObjectStore
    cached: Callable[[], Collection[int]]
    wake: Callable[[], None]
    poll_s: float
    clock: Callable[[], float]
    counts: Counts
    named: Mapping[str, Any]
    names: Mapping[int, str] | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""
    is_new: bool = False
    _due_s: float = 0.0
    _failures: int = 0
    _thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begins to list the store in a thread, unless a listing runs or was made less than poll_s ago."""
        if self._thread is None and self.clock() >= self._due_s:
            self._thread = threading.Thread(target=self._run, name=f"list-{self.store.uri}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # The system starts no further thread: the next look tries again.
                self._thread = None

    def wait(self) -> None:
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            is_known = isinstance(error, StoreError)
            problem = error.text if isinstance(error, StoreError) else f"the store can not be listed: {error}"
            if self.problem != problem:
                extra = {**self.named, "reason": problem}
                logger.warning("store can not be listed", exc_info=None if is_known else error, extra=extra)
            self.problem = problem
            self._failures += 1
            self.counts.failures += 1
            self._due_s = self.clock() + wait_s(self._failures, self.poll_s)
        finally:
            self._thread = None
            self.wake()

    def _read(self) -> None:
        self.counts.listings += 1
        folders: dict[int, list[str]] = {}
        for name in sorted(self.store.folders()):
            if (version := version_number(name)) is not None:
                folders.setdefault(version, []).append(name)
        if not folders and (self.names or self.cached()):
            raise StoreError(errno.ENOENT, "the store lists no versions any more; the versions before stay")
        if self.problem:
            logger.info("store is listed again", extra=self.named)
        self.problem, self._failures = "", 0
        self.names = {version: given[-1] for version, given in folders.items()}
        self.notes = {version: same_number(given) for version, given in folders.items() if len(given) > 1}
        self._due_s = self.clock() + jittered(self.poll_s)
        self.is_new = True


def wait_s(attempts: int, poll_s: float) -> float:
    return jittered(min(_FIRST_WAIT_S * 2 ** (attempts - 1), _MAX_WAIT_S, max(poll_s, _FIRST_WAIT_S)))


def jittered(seconds: float) -> float:
    """Returns a wait that is up to 20 % shorter or longer at random.

    Otherwise all servers that read one bucket could send their requests at the same moment.
    """
    return seconds * random.uniform(0.8, 1.2)


# Seconds after which the log tells of a fetch that goes on, the first time and then each time.
_TELL_FIRST_S, _TELL_EACH_S = 2.0, 10.0


@dataclass(slots=True)
class _Job:
    """The state of one attempt to fetch a version. again_at_s: time when the next attempt may begin, after the end of
    this one.

    is_cached: the cache folder had the version when the attempt began. is_kept: the attempt found that the cache folder
    has what the store lists. is_staged: the store had other files, which wait to be published.
    """

    fetch: Fetch | None = None
    state: str = "WAITING"
    message: str = ""
    error: ServiceError | None = None
    is_cached: bool = False
    is_kept: bool = False
    is_staged: bool = False
    is_told: bool = False
    is_over: bool = False
    is_stopped: bool = False
    attempts: int = 0
    again_at_s: float = 0.0


class Arrival:
    def __init__(self, mirror: Mirror, version: int, folder: Path) -> None:
        self.folder = folder
        self._mirror = mirror
        self._version = version

    @property
    def seen(self) -> Fingerprint:
        return fingerprint(self.folder)

    def is_complete(self) -> bool:
        return self._mirror.has(self._version)


@dataclass(eq=False)
class Mirror:
    """The mirror of a model's versions below one URI; implements versions.loads.VersionSource.

    Concurrency: the watcher's thread calls; a thread lists the store, and each version is fetched by a thread of its
    own, one after the other.

    wake: called when a listing or a fetch has ended. poll_s: between two listings; settle_s: for which the listing of a
    version without a manifest must not have changed. clock: seconds, monotonic.
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
    is_local: bool = False

    def __post_init__(self) -> None:
        self._listing = Listing(
            self.store, self._fetched, lambda: self.wake(), self.poll_s, self.clock, self.counts, self._named()
        )
        self._jobs: dict[int, _Job] = {}
        self._settling: dict[int, tuple[Sequence[StoredObject], float]] = {}
        self._turn = threading.Lock()
        restore_folders(self.folder)

    def find(self) -> Mapping[int, Path]:
        """Returns version -> local folder, for the versions in the store, whether fetched or not.

        The store is listed once in poll_s, by a thread of its own. Until the listing has ended, and if the store can
        not be listed or lists nothing, the last listing stays in force. Before the first listing, the server serves the
        versions that an earlier process has fetched; only without such versions this method waits for the store.

        Raises:
          StoreError: it can not be listed, and nothing is known of it.
        """
        self._publish_staged()
        self._listing.begin_if_due()
        if self._listing.names is None:
            if fetched := self._fetched():
                return fetched
            self._listing.wait()
        if self._listing.names is None:
            raise StoreError(0, self.problem)
        if self._listing.is_new:
            self._listing.is_new = False
            self._refresh()
        return {version: self._path(version) for version in self._listing.names}

    @property
    def problem(self) -> str:
        return self._listing.problem

    @property
    def notes(self) -> Mapping[int, str]:
        return self._listing.notes

    def _publish_staged(self) -> None:
        """Puts the versions into place that replace cached ones. The watcher's thread, so that no load runs beside."""
        for version, job in self._jobs.items():
            if job.is_staged and job.fetch is not None:
                job.is_staged = False
                job.fetch.publish()
                logger.info("replaced in the cache", extra=self._named(version))

    def _refresh(self) -> None:
        """Asks the store about each version in the cache: for its files if that failed before, else for new deltas."""
        for version, job in self._jobs.items():
            if not (job.is_over and job.state == "HERE" and version in (self._listing.names or ())):
                continue
            if self._is_fetching(version):
                continue
            if job.is_kept:
                self._start(version, self._bring_deltas, version)
            else:
                self._begin(version)

    def _begin(self, version: int) -> _Job:
        before = self._jobs.get(version)
        job = _Job(attempts=0 if before is None or before.error is None else before.attempts)
        if before is not None and before.state == "INCOMPLETE":
            job.message = before.message
        if read_record(self._path(version)) is not None:
            job.state, job.is_cached = "HERE", True
        self._start(version, self._run, version, job)
        self._jobs[version] = job
        return job

    def _start(self, version: int, run: Callable[..., None], *given: object) -> None:
        threading.Thread(target=run, args=given, name=self._thread_name(version), daemon=True).start()

    def _bring_deltas(self, version: int) -> None:
        name = (self._listing.names or {}).get(version, str(version))
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
        return f"cannot read {self.store.uri}: {error.strerror}"

    def unserved(self, found: Collection[int]) -> str:
        if found:
            return unserved(self.store.uri, found)
        return f"no version folder (an integer name such as 1) below {self.store.uri}"

    def arrival(self, version: int, path: Path) -> Arrival:
        return Arrival(self, version, path)

    def is_at_hand(self, version: int) -> bool:
        return read_record(self._path(version)) is not None

    def has(self, version: int) -> bool:
        """Says whether a version is completely fetched; starts a fetch if due. Raises a failed fetch's error once.

        A version in the cache is complete at once; whether the store has other files is found meanwhile.
        """
        job = self._jobs.get(version)
        if job is None or (job.is_over and self.clock() >= job.again_at_s and not job.is_staged):
            job = self._begin(version)
        if job.is_cached:
            return True
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
            remove_folder(path)
            logger.info("removed from the cache", extra=self._named(version=number))

    def status(self) -> dict[str, Any]:
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
                    "message": job.message,
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
        name = (self._listing.names or {}).get(version, str(version))
        fetch = job.fetch = Fetch(
            self.store,
            name,
            target,
            self.folder / f".fetching-{version}",
            cache=self.cache,
            has_settled=lambda objects: self._has_settled(version, objects),
            is_stopped=lambda: job.is_stopped,
        )
        job.state, started_s = "HERE" if job.is_cached else "FETCHING", self.clock()
        over = threading.Event()
        try:
            threading.Thread(target=self._tell, args=(version, fetch, over), name="fetch-progress", daemon=True).start()
            outcome = fetch.bring()
            if outcome is Outcome.KEPT:
                job.is_kept = True
                self._bring_deltas(version)
            elif outcome is Outcome.INCOMPLETE and job.is_cached:
                raise NotReady(f"the store does not list all files of the version: {fetch.lacks}")
            elif outcome is Outcome.STAGED and job.is_cached:
                # find() publishes the files, because the watcher may load the cached version at this moment.
                job.is_staged = True
            elif outcome is Outcome.STAGED:
                job.is_kept = True
                fetch.publish()
            job.state = "INCOMPLETE" if outcome is Outcome.INCOMPLETE else "HERE"
            if fetch.lacks and fetch.lacks != job.message:
                logger.info("version is incomplete in its store", extra=self._named(version, fetch.lacks))
            job.message = fetch.lacks
            job.again_at_s = self.clock() + jittered(self.poll_s)
            if version in self._settling and job.state != "HERE":
                job.again_at_s = self.clock() + self.settle_s
        except StoreError as error:
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
        self.counts.failures += 1
        if job.is_cached:
            # The cached version is served. _refresh() starts the next attempt after the next listing.
            job.message = f"the cached files are served: {error.message}"
            logger.warning("cached version can not be compared", extra=self._named(version, error.message))
            return
        job.attempts += 1
        again_in_s = wait_s(job.attempts, self.poll_s)
        job.state, job.error, job.message = "FAILED", error, error.message
        job.again_at_s = self.clock() + again_in_s
        extra = self._named(version, error.message, retry_in_s=round(again_in_s, 1))
        logger.warning("fetch failed", extra=extra)

    def _has_settled(self, version: int, objects: Sequence[StoredObject]) -> bool:
        seen, since_s = self._settling.get(version, (None, 0.0))
        if seen != objects:
            self._settling[version] = (objects, self.clock())
            return self.settle_s <= 0
        return self.clock() - since_s >= self.settle_s

    def _tell(self, version: int, fetch: Fetch, over: threading.Event) -> None:
        pause_s = _TELL_FIRST_S
        while not over.wait(pause_s):
            pause_s = _TELL_EACH_S
            extra = self._named(version, done_bytes=fetch.done_bytes, num_bytes=fetch.num_bytes)
            logger.info("fetching", extra=extra)

    def _path(self, version: int) -> Path:
        return self.folder / str(version)

    def _named(self, version: int | None = None, reason: str = "", **more: object) -> dict[str, Any]:
        named = {"model": self.model, "uri": self.store.uri, "version": version, "reason": reason}
        return {name: value for name, value in named.items() if value not in (None, "")} | more


class Stores:
    """The mirrors of one server's models, which share one cache folder. Concurrency: any thread.

    Raises:
      OSError, CacheInUse: the cache folder can not be used.
    """

    def __init__(self, cache_folder: Path, max_bytes: int, *, poll_s: float, settle_s: float) -> None:
        self._cache = Cache(cache_folder, max_bytes)
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._opening = threading.Lock()
        self._mirrors: dict[tuple[str, str], Mirror] = {}

    def open(self, model: str, base_path: str, wake: Callable[[], None]) -> Mirror:
        """Returns or opens the mirror of a model's base path; raises InvalidRequest for a URI that can not be used."""
        with self._opening:
            mirror = self._mirrors.get((model, base_path))
            if mirror is None:
                store = ObjectStore(base_path)
                folder = self._cache.folder_of(model, store.uri)
                mirror = Mirror(model, store, folder, self._cache, wake, self._poll_s, self._settle_s)
                self._mirrors[model, base_path] = mirror
            mirror.wake = wake
            return mirror

    def forget(self, model: str) -> None:
        """Drops the mirrors of a removed model, with their counts; the model's cache folder stays."""
        with self._opening:
            self._mirrors = {key: mirror for key, mirror in self._mirrors.items() if key[0] != model}

    def status(self) -> list[dict[str, Any]]:
        return [mirror.status() for _, mirror in sorted(self._mirrors.copy().items())]

    def counts(self) -> list[tuple[str, Counts, bool]]:
        return [(mirror.model, mirror.counts, not mirror.problem) for _, mirror in sorted(self._mirrors.copy().items())]
