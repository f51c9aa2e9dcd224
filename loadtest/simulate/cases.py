"""The cases: code that promises durability, what it did in one life, and what must be there at the next start."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import service.stores.fetch as fetch_module
from loadtest.simulate.disk import Mark
from loadtest.simulate.syscalls import Recorder
from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from model_export.errors import ExportError
from model_export.exporter.versions import finish, new_version_folder
from model_export.parity.integrity import integrity_faults
from model_export.statistics.files import StatisticsFileError, add_to_file, read_statistics
from model_export.statistics.table_statistics import TableDescription, TableStatistics
from service.artifact.delta_file import Delta, Inbox, encode
from service.artifact.delta_journal import Journal, journal_path
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.errors import DeltaRefused, JournalUnavailable, ServiceError
from service.loading.kept_files import HotRowsFiles
from service.stores.fetch import RECORD, Cache, read_record
from service.stores.mirror import Mirror
from service.stores.object_store import StoredObject, StoreError
from service.versions.model_config import find_versions
from tests.toy_model import write_toy_model

_ALL = 1 << 30


class Broken(AssertionError):
    """The error that a promise is broken."""


class Case:
    """A program that lives, loses its power, and starts again. root: its folder; rng: draws what it does.

    prepare() writes what is durable before the first life. live() runs code; each Mark says what is known from there
    on. check() runs on the folder that a cut left, with all marks before the cut, and raises Broken.
    """

    # Numbers of errors that the code may raise without a fault of the disk.
    errors: Sequence[int] = ()

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.rng = rng

    def prepare(self) -> None:
        """Writes what is durable before the first life."""

    def live(self, disk: Recorder) -> None:
        """Runs the code for one life."""
        raise NotImplementedError

    def check(self, marks: Sequence[Mark]) -> None:
        """Raises Broken if the next start lacks something confirmed, or shows something half-written."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Takes the errors that the disk was told to make, and those that a command makes of them; no others."""
        try:
            yield
        except OSError as error:
            # shutil.Error has no number: it is a list of what could not be copied.
            expected = (errno.EIO, errno.ENOSPC, *self.errors)
            if not isinstance(error, shutil.Error) and error.errno not in expected:
                raise

    def _faults(self, disk: Recorder) -> None:
        if self.rng.random() < 0.4:
            disk.fail("fsync", self.rng.choice((0, self.rng.randint(0, 12))))
        if self.rng.random() < 0.4:
            disk.fail("write", self.rng.randint(0, 20))


class Upserts(Case):
    """Upserts through the journal of one version, by one or two processes; some journals are soon full."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(root, rng)
        self._max_bytes = rng.choice((_ALL, 4096))

    def _journal(self, faults: list[str]) -> Journal:
        path = journal_path(self.root / "state" / "journals", "m", 1, b"f" * 32)
        return Journal(
            path, max_bytes=self._max_bytes, max_record_bytes=1 << 20, refused=lambda fault, where: faults.append(where)
        )

    def live(self, disk: Recorder) -> None:
        """Appends and reads; some syncs and writes fail."""
        rng = self.rng
        self._faults(disk)
        with contextlib.ExitStack() as stack:
            journals = [self._journal([]) for _ in range(rng.randint(1, 2))]
            for journal in journals:
                # A killed process's files are closed, and with them goes its lock.
                stack.callback(journal.close)
            self._use(disk, journals)

    def _use(self, disk: Recorder, journals: list[Journal]) -> None:
        rng = self.rng

        def make(sequence: int) -> tuple[Delta, bytes]:
            rows = rng.randint(1, 60)
            ids, values = np.arange(rows), np.frombuffer(rng.randbytes(rows * 32), np.uint8).astype(np.float32)
            delta = Delta(sequence, "t", ids, values.reshape(rows, -1), b"f" * 32)
            data = encode(delta)
            disk.mark("begins", (sequence, data[-4:].hex()))
            delta = dataclasses.replace(delta, checksum=int.from_bytes(data[-4:], "little"))
            return delta, data

        for _ in range(rng.randint(1, 8)):
            journal = rng.choice(journals)
            action = rng.random()
            if action < 0.75:
                begun = len(disk.steps)
                try:
                    delta = journal.append(make, 1)
                    disk.mark("confirmed", (delta.sequence, _crc(delta)))
                except (JournalUnavailable, DeltaRefused):
                    tried = [one.value for one in disk.steps[begun:] if isinstance(one, Mark)]
                    disk.mark("refused", tried)
            elif action < 0.9:
                with self._failing():
                    disk.mark("shown", [(one.sequence, _crc(one)) for one in journal.read(_ALL)])
            else:
                journal.close()

    def check(self, marks: Sequence[Mark]) -> None:
        """Reads the journal: it has all confirmed and all shown upserts, no refused one, and no half of one."""
        faults: list[str] = []
        journal = self._journal(faults)
        found = {one.sequence: _crc(one) for one in journal.read(_ALL)}
        journal.close()
        begun = {value for mark in marks if mark.label == "begins" for value in [mark.value]}
        refused = {one for mark in marks if mark.label == "refused" for one in _list(mark.value)}
        for mark in marks:
            if mark.label == "confirmed" and found.get(_pair(mark.value)[0]) != _pair(mark.value)[1]:
                raise Broken(f"upsert {mark.value} was confirmed, and is gone; there are {found}")
            for sequence, crc in _list(mark.value) if mark.label == "shown" else ():
                if found.get(sequence) != crc:
                    raise Broken(f"upsert {sequence} was shown to readers, and is gone; there are {found}")
        for one in found.items():
            if one not in begun:
                raise Broken(f"upsert {one} was never made")
            if one in refused:
                raise Broken(f"upsert {one} was refused, and is there")
        if damaged := [fault for fault in faults if "never confirmed" not in fault]:
            raise Broken(f"a record within the journal is damaged: {damaged}")


def _crc(delta: Delta) -> str:
    return delta.checksum.to_bytes(4, "little").hex()


def _list(value: Any) -> list[Any]:
    return list(value)


def _pair(value: Any) -> tuple[int, str]:
    first, second = value
    return first, second


class DeltaFiles(Case):
    """Delta files that `model-export delta` writes into a version's folder."""

    @property
    def _version(self) -> Path:
        return self.root / "models" / "1"

    def prepare(self) -> None:
        """Writes the version."""
        write_toy_model(self._version)

    def live(self, disk: Recorder) -> None:
        """Writes deltas with given and with free numbers."""
        rng = self.rng
        self._faults(disk)
        for _ in range(rng.randint(1, 4)):
            value = rng.randint(1, 1 << 20)
            number = rng.choice((None, rng.randint(1, 6)))
            disk.mark("begins", value)
            try:
                with self._failing():
                    rows = np.full((5, 2), value)
                    file = write_delta(self._version, "user", np.arange(5), rows, sequence=number, force=True)
                    disk.mark("confirmed", (file.name, value))
            except ExportError as error:
                if not (self._version / "deltas" / f"{number:016d}.delta").exists():
                    raise Broken(f"delta {number} does not exist, and can not be written: {error}") from error

    def check(self, marks: Sequence[Mark]) -> None:
        """Reads the folder: it has all confirmed files, and each file is whole."""
        faults: list[str] = []
        inbox = Inbox(self._version, max_bytes=_ALL, refused=lambda fault, where: faults.append(f"{where}: {fault}"))
        found = {f"{one.sequence:016d}.delta": float(one.rows[0, 0]) for one in inbox.read(_ALL)}
        if faults:
            raise Broken(f"a delta file is half-written: {faults}")
        begun = {mark.value for mark in marks if mark.label == "begins"}
        for mark in marks:
            if mark.label == "confirmed":
                name, value = mark.value  # type: ignore[misc]
                if found.get(name) != value:
                    raise Broken(f"{name} was confirmed, and is {found.get(name)} in place of {value}")
        if strange := [value for value in found.values() if value not in begun]:
            raise Broken(f"deltas with the values {strange} were never made")


class Versions(Case):
    """Versions that an export writes with finish(), and that compact makes of a version with deltas."""

    errors = (errno.ENOTEMPTY, errno.EEXIST)

    def prepare(self) -> None:
        """Writes a version with a delta."""
        write_toy_model(self.root / "compacted" / "1")
        write_delta(self.root / "compacted" / "1", "user", np.arange(2), np.ones((2, 2)), force=True)

    def live(self, disk: Recorder) -> None:
        """Exports into a new or an old folder, or compacts."""
        rng = self.rng
        self._faults(disk)
        for _ in range(rng.randint(1, 2)):
            with self._failing():
                if rng.random() < 0.3:
                    done = compact(self.root / "compacted" / "1")
                else:
                    done = self._exported(rng.choice(("a", "b/c")), disk)
                disk.mark("confirmed", self._confirmed(done))

    def _confirmed(self, done: Path) -> tuple[str, str]:
        return str(done.relative_to(self.root)), _digest(done)

    def _exported(self, name: str, disk: Recorder, *, is_late: bool = False) -> Path:
        """Writes a version as exporter.artifact.write_artifact does, without a trained model."""
        base = self.root / name
        target = new_version_folder(base, None)
        if not is_late and self.rng.random() < 0.2:
            # Another export takes the name first.
            disk.mark("confirmed", self._confirmed(self._exported(name, disk, is_late=True)))
        base.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
        try:
            artifact = write_toy_model(temporary / target.name, scale=self.rng.randint(1, 9))
            manifest = Manifest.read(artifact)
            assert manifest is not None
            finish(artifact, manifest, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def check(self, marks: Sequence[Mark]) -> None:
        """Looks for all confirmed versions; each version that is there must be whole."""
        there = {}
        for base in [path for path in self.root.rglob("*") if path.is_dir() and ".tmp-" not in str(path)]:
            for path in find_versions(base).values():
                manifest = Manifest.read(path)
                if manifest is None or (faults := integrity_faults(path, manifest)):
                    raise Broken(f"{path} is half a version: {manifest and faults}")
                there[str(path.relative_to(self.root))] = _digest(path)
        for mark in marks:
            if mark.label == "confirmed":
                path, digest = mark.value  # type: ignore[misc]
                if there.get(path) != digest:
                    raise Broken(f"version {path} was confirmed, and is {'another' if path in there else 'gone'}")


def _digest(folder: Path) -> str:
    return hashlib.sha256(repr(sorted(_files(folder).items())).encode()).hexdigest()[:12]


def _files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class _Bucket:
    """Versions in an object store, which outlives power cuts."""

    uri = "s3://bucket/m"

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, bytes]] = {}
        # Version -> each content that it had, without its deltas; and all deltas that it ever had.
        self.past: dict[str, list[dict[str, bytes]]] = {}
        self.deltas: dict[str, set[tuple[str, bytes]]] = {}
        self.reads_left = _ALL
        self.is_damaging = False

    def put(self, version: str, files: dict[str, bytes]) -> None:
        self.versions.setdefault(version, {}).update(files)
        plain = {path: data for path, data in self.versions[version].items() if not path.startswith("deltas/")}
        self.past.setdefault(version, []).append(plain)
        self.deltas.setdefault(version, set()).update(
            one for one in self.versions[version].items() if one[0].startswith("deltas/")
        )

    def take(self, version: str, path: str) -> None:
        """Removes an object of a version."""
        self.versions[version].pop(path, None)
        self.put(version, {})

    def _use(self) -> None:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise StoreError(5, "off")

    def folders(self) -> list[str]:
        """Lists the versions."""
        self._use()
        return list(self.versions)

    def objects(self, folder: str) -> list[StoredObject]:
        """Lists the objects of a version, or of its deltas."""
        self._use()
        version, _, below = folder.partition("/")
        prefix = f"{below}/" if below else ""
        return sorted(
            StoredObject(path.removeprefix(prefix), len(data), hashlib.md5(data).hexdigest())
            for path, data in self.versions.get(version, {}).items()
            if path.startswith(prefix)
        )

    def read(self, folder: str, one: StoredObject, begin: int, end: int) -> bytes:
        """Reads a part."""
        self._use()
        data = self.versions[folder][one.path][begin:end]
        if self.is_damaging and MANIFEST_PATH in self.versions[folder] and ".data-" in one.path:
            # Only what the manifest has a checksum of can be noticed.
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data


class _InlineMirror(Mirror):
    """A Mirror that fetches at once, so that the order of all it does is the same in each run."""

    def _start(self, version: int, run: Any, *given: object) -> None:
        run(*given)


class Fetches(Case):
    """Versions that a mirror fetches from an object store into its cache."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(root, rng)
        self.bucket = _Bucket()
        self.now_s = 0.0

    def prepare(self) -> None:
        """Puts a version into the store."""
        self._upload("1")

    def _upload(self, version: str) -> None:
        if self.rng.random() < 0.5:
            write_toy_model(self.root.parent / "upload", scale=self.rng.randint(1, 9))
            self.bucket.put(version, _files(self.root.parent / "upload"))
        else:
            self.bucket.put(version, {"saved_model.pb": self._data(), "variables/variables.index": self._data()})
        if self.rng.random() < 0.5:
            self.bucket.put(version, {"assets/more": self._data()})

    def _data(self) -> bytes:
        return self.rng.randbytes(self.rng.randint(1, 1500))

    @contextlib.contextmanager
    def _mirror(self) -> Iterator[Mirror]:
        bucket: Any = self.bucket
        cache = Cache(self.root / "cache", 0)
        part, fetch_module._PART_BYTES = fetch_module._PART_BYTES, 600
        try:
            folder = cache.folder_of("m", bucket.uri)
            yield _InlineMirror("m", bucket, folder, cache, lambda: None, 60.0, 0.0, lambda: self.now_s)
        finally:
            fetch_module._PART_BYTES = part
            cache.close()

    def live(self, disk: Recorder) -> None:
        """Polls a store that changes meanwhile, and that fails at times."""
        rng, bucket = self.rng, self.bucket
        self._faults(disk)
        with self._failing(), self._mirror() as mirror:
            for _ in range(rng.randint(1, 4)):
                # An object that was fetched often goes before the rest of its version is fetched.
                change = 0.5 if bucket.reads_left < 0 and rng.random() < 0.5 else rng.random()
                if change < 0.3:
                    self._upload(rng.choice("123"))
                elif change < 0.4:
                    bucket.put(rng.choice(list(bucket.versions)), {"saved_model.pb": self._data()})
                elif change < 0.55:
                    # A name in a folder of its own, whose names no other step syncs; fetched before the other objects.
                    name = rng.choice(("assets/more", "assets/less"))
                    version = rng.choice(sorted(bucket.versions)[-2:])
                    if name in bucket.versions[version]:
                        bucket.take(version, name)
                    else:
                        bucket.put(version, {name: self._data()})
                elif change < 0.6:
                    version = rng.choice(list(bucket.versions))
                    deltas = {name: data for name, data in bucket.versions[version].items() if "deltas/" in name}
                    bucket.versions[version] = rng.choice(bucket.past[version]) | deltas
                elif change < 0.75:
                    number = rng.randint(1, 5)
                    bucket.put(rng.choice(list(bucket.versions)), {f"deltas/{number}.delta": self._data()})
                bucket.reads_left = rng.randint(0, 12) if rng.random() < 0.4 else _ALL
                bucket.is_damaging = rng.random() < 0.1
                self.now_s += 100
                self._poll(mirror, disk)
                self._poll(mirror, disk)
        bucket.reads_left, bucket.is_damaging = _ALL, False

    def _poll(self, mirror: Mirror, disk: Recorder) -> None:
        try:
            mirror.find()
            mirror._listing.wait()
            found = mirror.find()
        except StoreError:
            return
        wanted = set(sorted(found)[-2:])
        for version in wanted:
            try:
                if mirror.has(version):
                    disk.mark("here", version)
            except ServiceError as error:
                if os.strerror(errno.EEXIST) in str(error):
                    raise Broken(f"what a killed process left stops version {version} for ever: {error}") from error
        disk.mark("keeps", sorted(wanted))
        mirror.keep(wanted)
        kept = {f"{prefix}{version}" for version in wanted for prefix in ("", ".fetching-")}
        if left := {path.name for path in mirror.folder.iterdir()} - kept:
            raise Broken(f"{left} were removed from the cache, and are there")

    def check(self, marks: Sequence[Mark]) -> None:
        """Compares the versions that the cache serves at once with what the store had; none may be lost."""
        here: set[int] = set()
        for mark in marks:
            if mark.label == "here":
                here.add(mark.value)  # type: ignore[arg-type]
            elif mark.label == "keeps":
                here &= set(_list(mark.value))
        with self._mirror() as mirror:
            for version, path in mirror._fetched().items():
                self._check_version(str(version), path)
            if lost := [version for version in here if not mirror.is_at_hand(version)]:
                raise Broken(f"versions {lost} were fetched, and are gone")

    def _check_version(self, version: str, path: Path) -> None:
        files = _files(path)
        record = read_record(path) or {}
        deltas = {(name, data) for name, data in files.items() if name.endswith(".delta")}
        plain = {
            name: data
            for name, data in files.items()
            if not name.startswith(("deltas/", RECORD, ".")) and not name.endswith(".fetching")
        }
        if plain not in self.bucket.past[version]:
            raise Broken(f"version {version} in the cache is none that the store had: {_sizes(plain)}")
        if not deltas <= self.bucket.deltas[version]:
            raise Broken(f"version {version} in the cache has deltas that the store never had")
        names = {name for name, _ in deltas}
        if missing := [name for name in record if name.startswith("deltas/") and name not in names]:
            raise Broken(f"the record of version {version} says that {missing} were fetched, and they are gone")


def _sizes(files: dict[str, bytes]) -> dict[str, int]:
    return {name: len(data) for name, data in files.items()}


class _Counted:
    """Stands for a loaded version whose lookups were counted."""

    name, version = "m", 3
    tables: Collection[str] = ("t",)

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def servable(self) -> Any:
        """Returns itself."""
        return self

    def traffic(self, table: str, limit: int) -> Any:
        """Returns rows whose ids are near the number."""
        rows = [_Row(self._number + one) for one in range(100)]
        return dataclasses.make_dataclass("Traffic", ["rows"])(rows)


@dataclasses.dataclass
class _Row:
    id: int
    key: str | None = None
    lookups: int = 1


class SmallFiles(Case):
    """Files that are replaced as a whole: lookup statistics and hot rows."""

    def live(self, disk: Recorder) -> None:
        """Replaces the files some times."""
        rng = self.rng
        self._faults(disk)
        table = TableDescription("film", 10, 4, "mean", ("liked",))
        for _ in range(rng.randint(1, 4)):
            number = rng.randint(1, 1 << 20)
            disk.mark("begins", number)
            HotRowsFiles(str(self.root / "hot"), lambda number=number: [_Counted(number)]).write()  # type: ignore
            with self._failing():
                add_to_file(self.root / "made" / "statistics", _statistics(table, rng.randint(1, 300)))
                disk.mark("counted", self._steps())

    def _steps(self) -> int:
        return sum(one.steps for one in read_statistics(self.root / "made" / "statistics"))

    def check(self, marks: Sequence[Mark]) -> None:
        """Reads the files: each is an old one or a new one, and counts never go back."""
        begun = {mark.value for mark in marks if mark.label == "begins"}
        path = self.root / "hot" / "m" / "3.jsonl"
        if path.exists():
            rows = HotRowsFiles(str(self.root / "hot"), lambda: []).read("m", 3)
            if len(rows.get("t", ())) != 100 or int(rows["t"][0]) not in begun:
                raise Broken(f"the file of hot rows is half-written: {path.read_bytes()[:80]!r}")
        counted = max((mark.value for mark in marks if mark.label == "counted"), default=0)  # type: ignore[type-var]
        try:
            steps = self._steps()
        except StatisticsFileError as error:
            raise Broken(f"a file of statistics is half-written: {error}") from error
        if steps < counted:  # type: ignore[operator]
            raise Broken(f"statistics of {counted} steps were written, and {steps} are there")


def _statistics(table: TableDescription, ids: int) -> TableStatistics:
    empty = TableStatistics.empty(table, partitions=4).with_step(is_sampled=True)
    return empty.with_rows(np.arange(ids), np.array([0, ids]))


CASES: dict[str, type[Case]] = {
    "upserts": Upserts,
    "delta files": DeltaFiles,
    "versions": Versions,
    "object store": Fetches,
    "small files": SmallFiles,
}
