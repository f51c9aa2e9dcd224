"""Reads, writes and checks delta files, which hold new values for some rows of one table.

offset  bytes  field (little-endian)
    0       8      magic, "EMBDELTA"
    8       4      format version, 1
    12      4      flags: 1 for "also where a signature answers from a copy of the tables"
    16      8      sequence number, 1 or more
    24      8      time of creation, microseconds since 1970 (UTC)
    32      4      dtype of the values: 1 for float32
    36      4      D
    40      8      N, 1 or more
    48      32     fingerprint of the version: SHA-256 of its lookup_manifest.json
    80      4      bytes of the table's name
    84      4      0
    88             the table's name (UTF-8), padded with zeros to a multiple of 8
                   N row numbers, int64
                   N x D numbers, float32
                   CRC-32C of all bytes before it, 4 bytes

Writers use durable_files.write_whole(), so that a reader finds all of a file or nothing.

The folder into which other programs put them is not trusted: a file's name is a number, the file is a plain file of
bounded size, no link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from service.artifact.files import close_unwritten
from service.artifact.hashes import crc32c_of
from service.artifact.manifest import MANIFEST_PATH
from service.artifact.stored_tables import LARGEST, rounded
from service.errors import ArtifactError, os_errors_as
from service.types import Array, TableInfo

MAGIC = b"EMBDELTA"
FORMAT_VERSION = 1
# Name of the folder, within a version's folder, that holds its delta files.
DELTAS_FOLDER = "deltas"
SUFFIX = ".delta"
# Largest sequence number of a delta: up to 2**53, JSON readers that use float64 keep a number exact. Also, 2 * sequence
# + 1 must fit into an int64, because deltas are ordered by this number.
MAX_SEQUENCE = 2**53

HEADER = struct.Struct("<8sIIQQIIQ32sII")
_CHECKSUM = struct.Struct("<I")
_FLOAT32 = 1
_IS_FORCED = 1
_MAX_NAME_BYTES = 4096

Reason = Literal[
    "truncated",
    "corrupt",
    "format",
    "fingerprint",
    "table",
    "ids",
    "values",
    "sequence",
    "repeated",
    "oversized",
    "not_a_file",
    "copied_tables",
]


class DeltaFault(Exception):
    """The error that refuses a whole delta; its text explains the fault. reason: one word for metrics."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta: new values for some rows of one table of one model version.

    sequence: of two deltas that change a row, the delta with the higher number wins.
    ids: [N] int64, none twice; rows: [N, D] float32.
    fingerprint: fingerprint_of() the version that the delta is for.
    created_us: microseconds since 1970, for people.
    is_forced: the delta is applied even if a signature of the version answers from a copy of the tables.
    """

    sequence: int
    table: str
    ids: Array
    rows: Array
    fingerprint: bytes
    created_us: int = 0
    is_forced: bool = False
    # The CRC-32C that ends the encoded delta (a delta file or a journal's record); 0 for a delta that was not decoded
    # from bytes.
    checksum: int = 0


def fingerprint_of(artifact: Path) -> bytes:
    """Returns the SHA-256 of a version's manifest, by which a delta names the version that it is made for.

    No two exports have equal manifests, because a manifest has the tables' checksums and the time of the export.
    """
    with os_errors_as(ArtifactError, f"{artifact} has no lookup manifest"):
        return hashlib.sha256((artifact / MANIFEST_PATH).read_bytes()).digest()


def encode(delta: Delta) -> bytes:
    name = delta.table.encode()
    count, dim = delta.rows.shape
    flags = _IS_FORCED if delta.is_forced else 0
    fields = (FORMAT_VERSION, flags, delta.sequence, delta.created_us, _FLOAT32, dim, count, delta.fingerprint)
    body = b"".join(
        (
            HEADER.pack(MAGIC, *fields, len(name), 0),
            name + b"\0" * (-len(name) % 8),
            np.ascontiguousarray(delta.ids, "<i8").tobytes(),
            np.ascontiguousarray(delta.rows, "<f4").tobytes(),
        )
    )
    return body + _CHECKSUM.pack(crc32c_of(body))


def size_of(header: bytes) -> int:
    """Returns the size in bytes that a delta file must have by its header; raises DeltaFault."""
    if len(header) < HEADER.size:
        raise DeltaFault("truncated", f"{len(header)} bytes are no header")
    magic, version, _, _, _, dtype, dim, count, _, name_bytes, _ = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise DeltaFault("format", f"it begins with {magic!r}, not {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise DeltaFault("format", f"format version {version}, expected {FORMAT_VERSION}")
    if dtype != _FLOAT32:
        raise DeltaFault("format", f"numbers of kind {dtype}, expected {_FLOAT32} (float32)")
    if not (0 < name_bytes <= _MAX_NAME_BYTES and 0 < dim and 0 < count):
        raise DeltaFault("format", f"{count} rows of {dim} numbers for a table whose name has {name_bytes} bytes")
    return int(HEADER.size + -(-name_bytes // 8) * 8 + count * (8 + 4 * dim) + _CHECKSUM.size)


def decode(data: bytes) -> Delta:
    wanted = size_of(data)
    if len(data) != wanted:
        raise DeltaFault("truncated" if len(data) < wanted else "corrupt", f"{len(data)} bytes, expected {wanted}")
    body = memoryview(data)[: -_CHECKSUM.size]
    (stored,) = _CHECKSUM.unpack_from(data, len(body))
    found = crc32c_of(body)
    if found != stored:
        raise DeltaFault("corrupt", f"its checksum is {found:#010x}, it says {stored:#010x}")
    _, _, flags, sequence, created_us, _, dim, count, fingerprint, name_bytes, _ = HEADER.unpack_from(data)
    try:
        name = data[HEADER.size : HEADER.size + name_bytes].decode()
    except UnicodeDecodeError as error:
        raise DeltaFault("format", "its table's name is not UTF-8") from error
    if not 0 < sequence <= MAX_SEQUENCE:
        raise DeltaFault("sequence", f"sequence number {sequence}, expected 1 to {MAX_SEQUENCE}")
    ids_at = HEADER.size + -(-name_bytes // 8) * 8
    ids = np.frombuffer(data, "<i8", count, ids_at)
    rows = np.frombuffer(data, "<f4", count * dim, ids_at + 8 * count).reshape(count, dim)
    return Delta(sequence, name, ids, rows, fingerprint, created_us, bool(flags & _IS_FORCED), stored)


def file_name(sequence: int) -> str:
    """Returns the name of a delta's file; names sort in the order of their sequence numbers.

    >>> file_name(7)
    '0000000000000007.delta'
    """
    return f"{sequence:016d}{SUFFIX}"


def sequence_of(name: str) -> int | None:
    """Returns the sequence number in a delta file's name; None for any other file.

    >>> sequence_of("0007.delta"), sequence_of(".7.delta"), sequence_of("7.delta.tmp")
    (7, None, None)
    """
    stem = name.removesuffix(SUFFIX)
    is_number = stem != name and stem.isascii() and stem.isdigit() and len(stem) <= 20
    return int(stem) if is_number else None


def check_delta(delta: Delta, tables: Mapping[str, TableInfo], fingerprint: bytes) -> None:
    """Raises DeltaFault if a delta names another version or an unknown table, or its rows do not fit the table."""
    if delta.fingerprint != fingerprint:
        raise DeltaFault(
            "fingerprint",
            f"it is for the version whose fingerprint begins with {delta.fingerprint[:8].hex()}, "
            f"this one's with {fingerprint[:8].hex()}",
        )
    table = tables.get(delta.table)
    if table is None:
        raise DeltaFault("table", f"no table {delta.table!r}; tables: {', '.join(sorted(tables)) or 'none'}")
    check_rows(table, delta.ids, delta.rows)


def check_rows(table: TableInfo, ids: Array, rows: Array) -> None:
    """Raises DeltaFault if ids or new rows do not fit their table; ids: [N] int64, rows: [N, D] float32."""
    name = table.name
    if rows.shape[1] != table.embedding_dim:
        raise DeltaFault("table", f"table {name!r}: rows of {rows.shape[1]} numbers, it has {table.embedding_dim}")
    outside = (ids < 0) | (ids >= table.vocabulary_size)
    if outside.any():
        place = int(np.argmax(outside))
        size = table.vocabulary_size
        raise DeltaFault(
            "ids",
            f"table {name!r}: id {ids[place]} at position {place} is out of range, it has ids 0 to {size - 1}",
        )
    sorted_ids = np.sort(ids)
    twice = sorted_ids[1:] == sorted_ids[:-1]
    if twice.any():
        raise DeltaFault("ids", f"table {name!r}: id {sorted_ids[int(np.argmax(twice))]} occurs twice")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DeltaFault(
            "values",
            f"table {name!r}: row {ids[int(np.argmin(finite))]} holds NaN, infinity or a number beyond float32",
        )
    if table.dtype in LARGEST:
        largest = np.abs(rows).max(axis=1)
        numbers, _ = rounded(largest[:, None], table.dtype)
        is_lost = numbers[:, 0] == rounded(np.array([[np.inf]], np.float32), table.dtype)[0][0, 0]
        if is_lost.any():
            place = int(np.argmax(is_lost))
            raise DeltaFault(
                "values",
                f"table {name!r}: row {ids[place]} holds {largest[place]:.6g}, {table.dtype} ends at "
                f"{LARGEST[table.dtype]:.6g}",
            )


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK keeps open() from waiting for a writer if the path is a named pipe.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

# A delta file that was read before is checked for changes only in every 25th call of read(): a folder may hold
# thousands of delta files, which hardly ever change.
_LOOK_AGAIN_EVERY = 25

# Inode, size and change times of a delta file, kept to see later whether the file has changed.
_Look = tuple[int, int, int, int]


class Inbox:
    """The reader of delta files in a version's folder, each of which it reads once. Concurrency: one caller at a time.

    Args:
      max_bytes: largest size of one file.
      refused: called with the fault and the path of a file that can not be read, once for each state of the file.
    """

    def __init__(self, artifact: Path, *, max_bytes: int, refused: Callable[[DeltaFault, str], None]) -> None:
        self._folder = artifact / DELTAS_FOLDER
        self._max_bytes = max_bytes
        self._refused = refused
        self._seen: dict[str, _Look] = {}
        # Names of the refused delta files: each call of read() looks whether they have changed, because somebody may
        # replace them.
        self._bad: set[str] = set()
        # Names of the refused delta files that could not be opened or read, perhaps for a reason outside of the file,
        # such as a disk that failed for a moment: each call tries them again.
        self._unread: set[str] = set()
        self._calls = 0
        self._is_link = False

    def read(self, max_bytes: int) -> list[Delta]:
        """Returns the deltas in files that are new or have changed, lowest sequence numbers first; raises OSError.

        Args:
          max_bytes: after so many bytes the remaining files are left for the next call.
        """
        try:
            folder = os.open(self._folder, _FOLDER_FLAGS)
        except FileNotFoundError:
            self._seen = {}
            return []
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if not self._is_link:
                self._is_link = True
                self._refused(
                    DeltaFault("not_a_file", "it is no folder, and links are not followed"), str(self._folder)
                )
            return []
        self._is_link = False
        self._calls += 1
        try:
            return self._read(folder, max_bytes)
        finally:
            close_unwritten(folder)

    def forget(self, sequence: int) -> None:
        """Lets read() return the delta of this number again, if its file is still there."""
        self._seen = {name: look for name, look in self._seen.items() if sequence_of(name) != sequence}

    def _read(self, folder: int, max_bytes: int) -> list[Delta]:
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                sequence = sequence_of(entry.name)
                if sequence is not None:
                    found[entry.name] = sequence
        self._seen = {name: look for name, look in self._seen.items() if name in found}
        self._bad &= found.keys()
        self._unread &= found.keys()
        deltas, done = [], 0
        looks_at_all = self._calls % _LOOK_AGAIN_EVERY == 0
        for name, sequence in sorted(found.items(), key=lambda item: item[1]):
            if not looks_at_all and name in self._seen and name not in self._bad:
                continue
            try:
                look = _look(os.stat(name, dir_fd=folder, follow_symlinks=False))
            except FileNotFoundError:
                continue
            is_known = self._seen.get(name) == look
            if is_known and name not in self._unread:
                continue
            if done >= max_bytes:
                break
            try:
                data, look = self._open(folder, name)
                self._seen[name] = look
                self._bad.discard(name)
                self._unread.discard(name)
                done += len(data)
                delta = decode(data)
                if delta.sequence != sequence:
                    raise DeltaFault("sequence", f"its name says {sequence}, its header {delta.sequence}")
                deltas.append(delta)
            except FileNotFoundError:
                continue
            except DeltaFault as fault:
                self._seen[name] = look
                self._bad.add(name)
                is_told = is_known and name in self._unread
                if isinstance(fault.__cause__, OSError):
                    self._unread.add(name)
                if not is_told:
                    self._refused(fault, f"{self._folder / name}")
        return deltas

    def _open(self, folder: int, name: str) -> tuple[bytes, _Look]:
        try:
            descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DeltaFault("not_a_file", f"it can not be opened: {error.strerror}") from error
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DeltaFault("not_a_file", "it is no plain file")
            if found.st_size > self._max_bytes:
                raise DeltaFault("oversized", f"{found.st_size} bytes, the limit is {self._max_bytes}")
            try:
                return file.read(found.st_size), _look(found)
            except OSError as error:
                raise DeltaFault("not_a_file", f"it can not be read: {error.strerror}") from error


def _look(found: os.stat_result) -> _Look:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
