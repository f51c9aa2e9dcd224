"""Reads a table of an artifact row by row, without mapping or copying it, so that large tables need little memory.

In a mapped table each row that is read would keep 64 KB of the file in memory: 290 MB for a table of 256 MB after the
requests for two lookups.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_export.graphs.reduced_table import widened
from service.artifact.manifest import Manifest, TableEntry
from service.types import TABLE_DTYPES, Array

# Rows of a table that are kept after they were read: the requests of a parity check name the same few rows again.
_KEPT_ROWS = 256


class Rows(Protocol):
    """The interface of a table from which the oracle reads rows; numpy arrays and SavedTable implement it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any, /) -> Array: ...


class SavedTable:
    """Reader of a [V, D] table in the file that the manifest names. Concurrency: one caller at a time."""

    def __init__(self, artifact: Path, entry: TableEntry) -> None:
        self.shape = (entry.vocabulary_size, entry.embedding_dim)
        self._file = artifact / entry.file
        self._entry = entry
        self._row_bytes = entry.nbytes // entry.vocabulary_size
        self._scales = read_scales(artifact, entry)
        self._row = lru_cache(_KEPT_ROWS)(self._read_row)

    def __getitem__(self, rows: int | Array) -> Array:
        """Reads the row of one id, [D], or of an array of ids, [N, D]: float64 if stored so, otherwise float32.

        The row of one id is a read-only array.
        """
        if isinstance(rows, np.ndarray):
            dtype = np.float64 if self._entry.dtype == "float64" else np.float32
            return np.array([self._row(int(row)) for row in rows], dtype).reshape(-1, self.shape[1])
        return self._row(int(rows))

    def _read_row(self, row: int) -> Array:
        with self._file.open("rb", buffering=0) as file:
            file.seek(self._entry.offset + row * self._row_bytes)
            numbers = np.frombuffer(file.read(self._row_bytes), TABLE_DTYPES[self._entry.dtype])
        if self._entry.dtype != "float64":
            scales = None if self._scales is None else self._scales[row]
            numbers = widened(numbers, self._entry.dtype, scales, embedding_dim=self.shape[1])
        numbers.flags.writeable = False
        return numbers

    def widened(self, start: int, numbers: Array) -> Array:
        """Converts consecutive stored rows to float32; start: number of the first of these rows."""
        scales = None if self._scales is None else self._scales[start : start + len(numbers)]
        return widened(numbers, self._entry.dtype, scales, embedding_dim=self.shape[1])


def read_tables(artifact: Path, manifest: Manifest) -> dict[str, SavedTable]:
    return {name: SavedTable(artifact, entry) for name, entry in manifest.tables.items()}


def read_scales(artifact: Path, entry: TableEntry) -> Array | None:
    """Maps the [V, 1] float32 scales of an int8 or int4 table; returns None for other dtypes."""
    if entry.scale is None:
        return None
    return np.memmap(artifact / entry.scale.file, "<f4", "r", entry.scale.offset, (entry.vocabulary_size, 1))
