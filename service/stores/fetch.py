"""Fetches versions from an object store into a local folder of limited size, and can resume after an interruption.

The version is fetched into a staging folder beside its place. A file there only grows, by parts in order; each part is
synced and then noted, so the notes say where the next attempt continues inside an object. A record of the listing lies
with the files: an object whose tag differs is fetched anew, and a version whose record equals the store's listing is
not fetched again.

The notes are lines in a file beside the fetched files. A line is added when the bytes before it are synced, so each
line that survives a kill or a power failure is true. What a file has beyond its last line may be torn.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from service.artifact.delta_file import DELTAS_FOLDER
from service.artifact.files import publish_folder, remove_folder, sync, write_whole
from service.artifact.hashes import crc32c_in, crc32c_of, masked
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.errors import ArtifactError, NotReady
from service.stores.object_store import ObjectStore, StoredObject
from service.versions.model_config import SAVED_MODELS

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
        os.close(self._lock_file)

    def folder_of(self, model: str, uri: str) -> Path:
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
        if not self._lack(missing()):
            return
        # If the cache folder lacks space, the folders of models that are not served any more are removed from it.
        for path in self.folder.iterdir():
            if path.is_dir() and path not in self._used:
                remove_folder(path)
        if why := self._lack(missing()):
            raise ArtifactError(f"{what} needs {_mib(missing())} more in {self.folder}, {why}")

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


PROGRESS = ".progress.jsonl"


class Step(NamedTuple):
    """The number and the CRC-32C of the bytes at an object's begin that are fetched and synced to the disk."""

    num_bytes: int = 0
    crc: int = 0


class Progress:
    """The file that notes how many bytes of each object of a version are fetched from the store. Concurrency: one
    caller at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        # (Path of an object, its ETag) -> how many of its first bytes are synced to the disk, and their checksum.
        self._steps: dict[tuple[str, str], Step] = {}
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in filter(None, lines):
            try:
                path, tag, num_bytes, crc = json.loads(line)
            except ValueError:
                # An incomplete line of the progress file is skipped: the process was killed, or the power failed, while
                # it was written.
                continue
            self._steps[path, tag] = Step(num_bytes, crc)

    def of(self, one: StoredObject) -> Step:
        """Returns the Step up to which an object is synced: 0 bytes without an ETag, by which a change is noticed."""
        return self._steps.get((one.path, one.tag), Step()) if one.tag else Step()

    def note(self, one: StoredObject, step: Step) -> None:
        self._steps[one.path, one.tag] = step
        with self._path.open("ab") as file:
            # A newline is written before a line of the progress file, too, because the file may end with an incomplete
            # line.
            file.write(b"\n" + json.dumps([one.path, one.tag, *step]).encode() + b"\n")


RECORD = ".fetched.json"
# Type of the record of the objects from which a version's folder was fetched: path of an object -> its size and ETag.
Record = dict[str, list[int | str]]
_PART_BYTES = 8 << 20
# Number of parts of an object that are fetched at the same time; at most this many fetched parts are in memory.
_NUM_PARTS = 4
_DELTA = re.compile(rf"{DELTAS_FOLDER}/[0-9]+\.delta")


class Outcome(Enum):
    """The result of an attempt to fetch a version.

    KEPT: the version's local folder has what the store lists. STAGED: the staging folder has it, checked; publish()
    puts it into place. INCOMPLETE: the store does not list all files of the version.
    """

    KEPT = "KEPT"
    STAGED = "STAGED"
    INCOMPLETE = "INCOMPLETE"


class Fetch:
    """One attempt to fetch a version from an object store. bring() leaves the version's local folder as it is.

    num_bytes: size of the version in the store; done_bytes: size of the fetched part. Both are 0 before the listing.
    lacks: one line that says why the version in the store counts as incomplete; "" if it does not.
    Concurrency: one thread calls bring(); any thread may read the attributes.

    Args:
      target: the local folder of the version once it is complete; staging: the folder that holds it until then.
      has_settled: takes the listing of a version whose manifest is missing or lists no files; says whether the upload
        is over.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        target: Path,
        staging: Path,
        *,
        cache: Cache,
        has_settled: Callable[[Sequence[StoredObject]], bool],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._store = store
        self._name = name
        self._target = target
        self._staging = staging
        self._cache = cache
        self._has_settled = has_settled
        self._is_stopped = is_stopped
        self._progress = Progress(staging)
        self.num_bytes = 0
        self.done_bytes = 0
        self.read_bytes = 0
        self.lacks = ""

    def bring(self) -> Outcome:
        """Fetches the version into the staging folder, unless the version's local folder has all of it.

        Raises:
          StoreError: the store can not be read. ArtifactError: the version can not be used, or has no room.
          NotReady: stopped. OSError: the cache can not be written.
        """
        objects = self._store.objects(self._name)
        for one in objects:
            _check_path(one.path)
        listed: Record = {one.path: [one.num_bytes, one.tag] for one in objects}
        record = read_record(self._target)
        if record is not None and _without_deltas(record) == _without_deltas(listed):
            return Outcome.KEPT
        if not objects:
            self.lacks = "it has no object yet"
            return Outcome.INCOMPLETE
        self._staging.mkdir(exist_ok=True)
        self._drop_outdated(listed)
        self.lacks = self._lacks(objects)
        if self.lacks:
            return Outcome.INCOMPLETE
        self.num_bytes = sum(one.num_bytes for one in objects)
        self.done_bytes = sum(self._progress.of(one).num_bytes for one in objects)
        what = f"version {self._name} of {self._store.uri}"
        with self._cache.reserved(lambda: self.num_bytes - self.done_bytes, what):
            for one in objects:
                self._bring_object(one)
        try:
            _verify(self._staging, what)
        except ArtifactError:
            # All fetched files are removed: a table's checksum does not show which bytes are wrong, so the next attempt
            # fetches the whole version.
            shutil.rmtree(self._staging)
            raise
        return Outcome.STAGED

    def _drop_outdated(self, listed: Record) -> None:
        before = read_record(self._staging) or {}
        outdated = [self._staging / path for path in before if before[path] != listed.get(path)]
        for path in filter(Path.exists, outdated):
            path.unlink()
            # A file that came back after a power cut would be taken for the object that is fetched in its place.
            sync(path.parent)
        write_whole(self._staging / RECORD, json.dumps(listed).encode())

    def _lacks(self, objects: Sequence[StoredObject]) -> str:
        by_path = {one.path: one for one in objects}
        if MANIFEST_PATH not in by_path:
            # Without a manifest nothing lists a version's files: the upload to the store counts as over once
            # has_settled() says that the listing stays the same. If an object is replaced later, its tag changes, and
            # the next attempt fetches it again.
            if not any(name in by_path for name in SAVED_MODELS):
                return f"{SAVED_MODELS[0]} is not there yet"
            return self._unsettled(objects)
        self._bring_object(by_path[MANIFEST_PATH])
        try:
            manifest = Manifest.read(self._staging)
        except ArtifactError as error:
            # The network may have damaged the manifest's bytes, so the next attempt fetches the manifest again.
            self._progress.note(by_path[MANIFEST_PATH], Step())
            raise ArtifactError(f"version {self._name} of {self._store.uri}: {error.message}") from error
        assert manifest is not None  # Manifest.read() returns None only without a manifest file
        if not manifest.files:
            return self._unsettled(objects)
        for path, size in manifest.files.items():
            if path not in by_path:
                return f"{path} is not there yet"
            if by_path[path].num_bytes != size:
                return f"{path} has {by_path[path].num_bytes} bytes, and the manifest lists {size}"
        return ""

    def _unsettled(self, objects: Sequence[StoredObject]) -> str:
        return "" if self._has_settled(objects) else "its listing has changed within --version_settle_s"

    def _bring_object(self, one: StoredObject) -> None:
        path, step = self._staging / one.path, self._progress.of(one)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            if crc32c_in(file, 0, step.num_bytes) != step.crc:
                # The file's bytes do not have the checksum that Progress recorded: the disk is damaged, or the object
                # was replaced in the store meanwhile, and came back. It is fetched again from its start. Until its new
                # bytes are synced, nothing may take them for those: after a failed fsync they would have the checksum.
                self.done_bytes -= step.num_bytes
                step = Step()
                self._progress.note(one, step)
            # The bytes of the file behind the step.num_bytes that Progress recorded may be incomplete, and are cut off.
            file.truncate(step.num_bytes)
            file.seek(step.num_bytes)
            for part in self._parts(one, step.num_bytes):
                file.write(part)
                file.flush()
                os.fsync(file.fileno())
                step = Step(step.num_bytes + len(part), crc32c_of(part, step.crc))
                self._progress.note(one, step)
                self.done_bytes += len(part)
                self.read_bytes += len(part)

    def _parts(self, one: StoredObject, begin: int) -> Iterator[bytes]:
        """Yields the bytes of an object from an offset on, in order; fetches the next parts meanwhile."""
        starts = deque(range(begin, one.num_bytes, _PART_BYTES))
        waiting: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(_NUM_PARTS, thread_name_prefix="fetch") as threads:
            while starts or waiting:
                while starts and len(waiting) < _NUM_PARTS:
                    start = starts.popleft()
                    end = min(start + _PART_BYTES, one.num_bytes)
                    waiting.append(threads.submit(self._store.read, self._name, one, start, end))
                try:
                    if self._is_stopped():
                        raise NotReady("The version is not wanted any more.")
                    part = waiting.popleft().result()
                except BaseException:
                    for future in waiting:
                        future.cancel()
                    raise
                yield part

    def publish(self) -> None:
        """Renames the staging folder to the version's folder, which always has a complete version or is missing.

        Call this after bring() returned STAGED, while no thread loads the version.
        """
        publish_folder(self._staging, self._target)
        (self._target / PROGRESS).unlink(missing_ok=True)


def bring_deltas(store: ObjectStore, name: str, target: Path, cache: Cache) -> int:
    """Fetches the delta files that a fetched version lacks, and renames each into place; returns the number of bytes
    that were read.

    A delta that is gone from the store stays.

    Args:
      name: the version's folder below the store's URI. target: its local folder.

    Raises:
      StoreError: the store can not be read. ArtifactError: the deltas have no room. OSError: as in Fetch.bring().
    """
    record = read_record(target)
    if record is None:
        return 0
    listed = [one._replace(path=f"{DELTAS_FOLDER}/{one.path}") for one in store.objects(f"{name}/{DELTAS_FOLDER}")]
    # Only objects that the server reads as deltas, directly in the deltas folder, are fetched: no name can lead to
    # another folder.
    new = [one for one in listed if _DELTA.fullmatch(one.path) and record.get(one.path) != [one.num_bytes, one.tag]]
    with cache.reserved(lambda: sum(one.num_bytes for one in new), f"deltas of version {name} of {store.uri}"):
        for one in new:
            parts = range(0, one.num_bytes, _PART_BYTES)
            data = [store.read(name, one, begin, min(begin + _PART_BYTES, one.num_bytes)) for begin in parts]
            write_whole(target / one.path, b"".join(data))
            record[one.path] = [one.num_bytes, one.tag]
            write_whole(target / RECORD, json.dumps(record).encode())
    return sum(one.num_bytes for one in new)


def _without_deltas(record: Record) -> Record:
    return {path: entry for path, entry in record.items() if not _DELTA.fullmatch(path)}


def read_record(folder: Path) -> Record | None:
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _verify(folder: Path, what: str) -> None:
    manifest = Manifest.read(folder)
    if manifest is None:
        return
    for name, table in manifest.tables.items():
        for part in (table, table.scale):
            # A part's checksum 0 in the manifest means that there is none: some writers of checkpoints store none.
            if (
                part is not None
                and part.crc32c
                and _masked_of(folder / part.file, part.offset, part.nbytes) != part.crc32c
            ):
                raise ArtifactError(f"{what}: bytes of table {name} in {part.file} do not have their checksum")


def _masked_of(path: Path, offset: int, nbytes: int) -> int:
    with path.open("rb") as file:
        found = crc32c_in(file, offset, nbytes)
    return 0 if found is None else masked(found)


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path or parts[:1] in ((RECORD,), (PROGRESS,)):
        raise ArtifactError(f"an object is named {path!r}, which can not be a file of a version")
