"""A table of an artifact, read row by row: neither mapped nor copied, so that checking a large one costs no memory.

A mapped table would do, but each row that is touched then keeps 64 KB of the file resident: 290 MB for a table of
256 MB after the cases of two lookups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_export.graphs.reduced_table import widened
from service.artifact.manifest import Manifest, TableEntry
from service.types import TABLE_DTYPES, Array


class Rows(Protocol):
    """Interface of a table that the oracle reads; arrays and SavedTable have it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any, /) -> Array: ...


class SavedTable:
    """A [V, D] table where the manifest says it lies. Concurrency: one caller at a time."""

    def __init__(self, artifact: Path, entry: TableEntry) -> None:
        self.shape = (entry.vocabulary_size, entry.embedding_dim)
        self._file = artifact / entry.file
        self._entry = entry
        self._row_bytes = entry.nbytes // entry.vocabulary_size
        self._scales = read_scales(artifact, entry)

    def __getitem__(self, rows: int | Array) -> Array:
        """Returns the [D] row, or the [N, D] rows, of ids inside the table: float64 as it is, all else as float32."""
        if isinstance(rows, np.ndarray):
            dtype = np.float64 if self._entry.dtype == "float64" else np.float32
            return np.array([self[int(row)] for row in rows], dtype).reshape(-1, self.shape[1])
        with self._file.open("rb", buffering=0) as file:
            file.seek(self._entry.offset + rows * self._row_bytes)
            numbers = np.frombuffer(file.read(self._row_bytes), TABLE_DTYPES[self._entry.dtype])
        if self._entry.dtype == "float64":
            return numbers
        scales = None if self._scales is None else self._scales[rows]
        return widened(numbers, self._entry.dtype, scales, embedding_dim=self.shape[1])

    def widened(self, start: int, numbers: Array) -> Array:
        """Returns the float32 of stored rows, of which start is the first."""
        scales = None if self._scales is None else self._scales[start : start + len(numbers)]
        return widened(numbers, self._entry.dtype, scales, embedding_dim=self.shape[1])


def read_tables(artifact: Path, manifest: Manifest) -> dict[str, SavedTable]:
    """Returns all tables of an artifact, by name."""
    return {name: SavedTable(artifact, entry) for name, entry in manifest.tables.items()}


def read_scales(artifact: Path, entry: TableEntry) -> Array | None:
    """Returns the [V, 1] float32 scales of an int8 or int4 table, mapped; None of any other."""
    if entry.scale is None:
        return None
    return np.memmap(artifact / entry.scale.file, "<f4", "r", entry.scale.offset, (entry.vocabulary_size, 1))
