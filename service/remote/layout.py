"""Defines how a table's rows are stored in a Valkey or Redis cluster, and reads such blocks from a version's files.

A table is cut into blocks of rows, one key each. The hash tag of a block's key holds model, table, fingerprint of the
artifact and the shard: `{es:MODEL/TABLE/FINGERPRINT/SHARD}BLOCK`. Shards spread a table over the slots. A fingerprint
stands for one manifest, and with that for the table's checksum. So a row of one
version can not be taken for that of another.

Two records have tags without a shard, JSON both: `{es:MODEL/TABLE}FINGERPRINT` says what was written, and
`{es:MODEL/TABLE}pointer` which fingerprints are whole, newest first. A writer changes the pointer last.

Rows that deltas and upserts changed are written over in their blocks. `{es:MODEL/TABLE/FINGERPRINT/SHARD}orders` has
the order of the last change of each such row. Servers tell each other of changes in `{es:MODEL/TABLE}FINGERPRINT/NOTE`.
"""

from __future__ import annotations

import json
import os
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np

from service.artifact.manifest import TableEntry, TableScale
from service.errors import TableUnreachable
from service.types import TABLE_DTYPES, Array, stored_columns

LAYOUT = 1
NUM_SLOTS = 16384
# Most bytes of table rows in one value in Valkey (a block). With the bytes that Valkey adds, such a value fits the 16
# KiB size class of its memory allocator.
_BLOCK_BYTES = 16384 - 256
_MOST_SHARDS = 4096
_FINGERPRINT_DIGITS = 16
# Suffixes of a table's keys in Valkey. sequence: the last upsert's number. held: hash of the upserts that are not in
# all blocks and replicas yet, and of the ids of such delta files. files: hash of the written delta files' checksums.
# changes: stream of the last changed rows.
NOTES = ("sequence", "held", "files", "changes")


def slot_of(key: str) -> int:
    """Returns the number of the cluster's hash slot that a key belongs to.

    Source: CRC16 of the tag, as the cluster specification of Redis has it.

    >>> slot_of("{user1000}.following"), slot_of("123456789")
    (3443, 12739)
    """
    begin = key.find("{")
    end = key.find("}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return crc_hqx(tag.encode(), 0) % NUM_SLOTS


def fingerprint_text(fingerprint: bytes) -> str:
    return fingerprint.hex()[:_FINGERPRINT_DIGITS]


def row_bytes_of(entry: TableEntry) -> int:
    columns = stored_columns(entry.dtype, entry.embedding_dim)
    return columns * np.dtype(TABLE_DTYPES[entry.dtype]).itemsize + (4 if entry.scale is not None else 0)


@dataclass(frozen=True)
class TableLayout:
    """The layout of a version's table in a cluster: keys, each with a block of block_rows rows of row_bytes bytes."""

    model: str
    table: str
    fingerprint: str
    vocabulary_size: int
    row_bytes: int
    block_rows: int
    num_shards: int

    @staticmethod
    def of(model: str, table: str, fingerprint: bytes, entry: TableEntry) -> TableLayout:
        """Chooses the number of rows in a block, and of the shards of a table's blocks."""
        row_bytes = row_bytes_of(entry)
        block_rows = max(_BLOCK_BYTES // row_bytes, 1)
        num_blocks = -(-entry.vocabulary_size // block_rows)
        name = fingerprint_text(fingerprint)
        shards = min(num_blocks, _MOST_SHARDS)
        return TableLayout(model, table, name, entry.vocabulary_size, row_bytes, block_rows, shards)

    @property
    def num_blocks(self) -> int:
        return -(-self.vocabulary_size // self.block_rows)

    @property
    def nbytes(self) -> int:
        return self.vocabulary_size * self.row_bytes

    @cached_property
    def tag(self) -> str:
        """The text with which the Valkey keys of all blocks of this table's rows begin."""
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}/{self.fingerprint}/"

    @property
    def record(self) -> str:
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}}}{self.fingerprint}"

    @property
    def pointer(self) -> str:
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}}}pointer"

    def note(self, name: str) -> str:
        return f"{self.record}/{name}"

    def orders(self, shard: int) -> str:
        return f"{self.tag}{shard:04x}}}orders"

    @cached_property
    def slots(self) -> Array:
        return np.array([slot_of(f"{self.tag}{shard:04x}}}") for shard in range(self.num_shards)], np.int64)

    def key(self, block: int) -> str:
        return f"{self.tag}{block % self.num_shards:04x}}}{block:08x}"

    def rows(self, block: int) -> tuple[int, int]:
        begin = block * self.block_rows
        return begin, min(begin + self.block_rows, self.vocabulary_size)

    def record_text(self, *, is_whole: bool) -> str:
        return json.dumps({"layout": LAYOUT, "is_whole": is_whole, **asdict(self)})

    def check_record(self, text: str | None, pointer: str | None) -> None:
        """Raises TableUnreachable unless two JSON texts read from a cluster say that it holds all rows of this table.

        Args:
          text: the value of the key `record`. pointer: the value of the key `pointer`. None: the key is missing.
        """
        what = f"table {self.table!r} of model {self.model!r}, fingerprint {self.fingerprint},"
        if text is None:
            raise TableUnreachable(f"{what} is not in the cluster; write it with `model-export push`")
        if text != self.record_text(is_whole=True):
            raise TableUnreachable(
                f"{what} is written in part only, or in another layout; run `model-export push` again"
            )
        if self.fingerprint not in Pointer.of(pointer).fingerprints:
            raise TableUnreachable(f"{what} is not in use any more: the cluster's pointer names {pointer}")


def layout_of_record(text: str) -> TableLayout | None:
    data = json.loads(text)
    if data.pop("layout", None) != LAYOUT:
        return None
    del data["is_whole"]
    return TableLayout(**data)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The record that says which fingerprints (versions) of a table a cluster holds.

    fingerprints: versions that are written completely, newest first. others: versions that are being written or
    removed.
    """

    fingerprints: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @staticmethod
    def of(text: str | None) -> Pointer:
        if text is None:
            return Pointer()
        data = json.loads(text)
        return Pointer(tuple(data["fingerprints"]), tuple(data["others"]))

    @property
    def text(self) -> str:
        return json.dumps({"layout": LAYOUT, "fingerprints": self.fingerprints, "others": self.others})


def _escaped(name: str) -> str:
    # Braces and slashes in names of models and tables are escaped: in a key, a brace ends the hash tag, and a slash
    # ends a name.
    return quote(name, safe="")


# What can be wrong with a block in a cluster. "differs": a row has other bytes than in the version's file, although no
# delta or upsert changed the row.
Fault = Literal["", "missing", "cut short", "differs"]


class BlockFile:
    """The blocks of one table, as `model-export push` writes them. Concurrency: any thread.

    The files are read and not mapped, because a mapped file that is cut short would end the process.

    Raises:
      OSError: a file can not be opened; the methods raise it if a file can not be read.
    """

    def __init__(self, layout: TableLayout, artifact: Path, entry: TableEntry) -> None:
        self._layout = layout
        columns = stored_columns(entry.dtype, entry.embedding_dim) * np.dtype(TABLE_DTYPES[entry.dtype]).itemsize
        self._parts = [_Part(artifact, entry, columns)]
        if entry.scale is not None:
            self._parts.append(_Part(artifact, entry.scale, 4))

    def bytes_of(self, block: int) -> bytes:
        begin, end = self._layout.rows(block)
        parts = [np.frombuffer(part.read(begin, end), np.uint8).reshape(end - begin, -1) for part in self._parts]
        return np.concatenate(parts, axis=1).tobytes()

    def fault(self, block: int, value: bytes | None, changed: Callable[[], Iterable[bytes]]) -> Fault:
        """Compares the value of a block in the cluster with the table's file; returns "" if it is right.

        Args:
          changed: reads the rows of the block's shard that deltas and upserts changed, as numbers in decimal. It is
            called after the block was read, so it names each row that is changed in the block's bytes.
        """
        expected = self.bytes_of(block)
        if value == expected:
            return ""
        if value is None:
            return "missing"
        if len(value) < len(expected):
            return "cut short"
        if len(value) > len(expected):
            return "differs"
        begin, end = self._layout.rows(block)
        own = [int(row) - begin for row in changed() if begin <= int(row) < end]
        rows, known = (np.frombuffer(one, np.uint8).reshape(end - begin, -1) for one in (value, expected))
        return "" if (np.delete(rows, own, 0) == np.delete(known, own, 0)).all() else "differs"


class _Part:
    # One array of a table in its file: the rows' numbers, or their scales.

    def __init__(self, artifact: Path, entry: TableEntry | TableScale, row_bytes: int) -> None:
        self._file = os.open(artifact / entry.file, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = entry.offset
        self._row_bytes = row_bytes

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, begin: int, end: int) -> bytes:
        size = (end - begin) * self._row_bytes
        data = os.pread(self._file, size, self._offset + begin * self._row_bytes)
        if len(data) != size:
            raise OSError(f"the table's file has {len(data)} bytes at row {begin} instead of {size}")
        return data
