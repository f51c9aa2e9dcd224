"""Reads and writes delta files, which hold new values for some rows of one table; a checksum shows half-written files.

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
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from service.artifact.crc32c import crc32c_of
from service.artifact.manifest import MANIFEST_PATH
from service.errors import ArtifactError
from service.types import Array

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
    try:
        return hashlib.sha256((artifact / MANIFEST_PATH).read_bytes()).digest()
    except OSError as error:
        raise ArtifactError(f"{artifact} has no lookup manifest: {error.strerror}") from error


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
    """Returns the size in bytes that a delta file must have by its header.

    Raises DeltaFault if the header is not valid.
    """
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
    """Parses a delta file; the delta's arrays are views of data. Raises DeltaFault."""
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
