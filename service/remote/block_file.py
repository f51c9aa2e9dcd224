"""Reads the blocks of a remote table out of the version's own files, and compares them with those in a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from service.artifact.manifest import TableEntry, TableScale
from service.remote.layout import TableLayout
from service.types import TABLE_DTYPES, stored_columns

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
        """Returns the bytes of a block: its rows, each with its scale behind it."""
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
