"""Copies a table from its reader into a checkpoint, chunk by chunk: as float32, or rounded to fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.graphs.reduced_table import Rounding, TableDtype
from model_export.importers.table_options import ReadTable
from model_export.importers.table_reader import Chunk, TableReader
from service.types import Array, saved_dtype

# A callback for progress. Its arguments are the number of copied rows, and of all rows, or None if not known.
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The result of copying one imported table into the checkpoint.

    source: address of the file. nonfinite: how many numbers are NaN or infinite.
    key, scale_key: keys in the checkpoint; rounding: provenance entry of a table in fewer bits.
    """

    read: ReadTable
    source: str
    dtype: TableDtype
    nonfinite: int
    key: str
    scale_key: str | None = None
    rounding: dict[str, str | float] | None = None


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The options for copying one table.

    source: address of the file, for messages. adds_mean: append a row that is the mean of all rows.
    """

    name: str
    source: str
    dtype: TableDtype = "float32"
    adds_mean: bool = False
    allow_nonfinite: bool = False

    def run(self, reader: TableReader, writer: BundleWriter, progress: Progress) -> CopiedTable:
        return _Run(self, writer).run(reader, progress)


class _Run:
    def __init__(self, copy: TableCopy, writer: BundleWriter) -> None:
        self._copy, self._writer = copy, writer
        self._rounding = None if copy.dtype == "float32" else Rounding(copy.name, copy.dtype)
        self._scales: list[Array] = []
        self._sum: Any = 0.0
        self._keys: list[Any] | None = None
        self._rows = self._dim = self._nonfinite = 0

    def run(self, reader: TableReader, progress: Progress) -> CopiedTable:
        copy = self._copy
        key, scale_key = f"tables/{copy.name}", None
        self._writer.add(key, saved_dtype(copy.dtype), self._pieces(reader, progress))
        if self._scales:
            scale_key = f"scales/{copy.name}"
            self._writer.add(scale_key, "float32", self._scales)
        mean_row = self._rows - 1 if copy.adds_mean else None
        read = ReadTable(copy.name, self._rows, self._dim, self._keys, mean_row)
        rounding = None if self._rounding is None else self._rounding.to_json()
        return CopiedTable(read, copy.source, copy.dtype, self._nonfinite, key, scale_key, rounding)

    def _pieces(self, reader: TableReader, progress: Progress) -> Iterator[Array]:
        for chunk in self._chunks(reader):
            yield self._stored(self._float32_rows(chunk))
            progress(self._rows, reader.num_rows)
        if not self._rows or not self._dim:
            raise ExportError(f"table {self._copy.name!r}: {self._copy.source} holds no rows of numbers")
        if self._copy.adds_mean:
            yield self._stored((self._sum / self._rows).astype(np.float32)[None, :])

    def _chunks(self, reader: TableReader) -> Iterator[Chunk]:
        # The `try` below surrounds the reader alone, so that each OSError or ValueError in it comes from the reader's
        # library.
        chunks = reader.chunks()
        while True:
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            except (OSError, ValueError, NotImplementedError) as error:
                raise ExportError(f"table {self._copy.name!r}: cannot read {self._copy.source}: {error}") from error
            yield chunk

    def _float32_rows(self, chunk: Chunk) -> Array:
        if self._rows and chunk.rows.shape[1] != self._dim:
            raise ExportError(
                f"table {self._copy.name!r}: row {self._rows} of {self._copy.source} has {chunk.rows.shape[1]} "
                f"numbers, the rows before it have {self._dim}"
            )
        self._dim = chunk.rows.shape[1]
        rows = self._float32(chunk.rows)
        if chunk.keys is not None:
            self._keys = self._keys or []
            self._keys.extend(chunk.keys)
        if self._copy.adds_mean:
            self._sum = self._sum + rows.sum(axis=0, dtype=np.float64)
        return rows

    def _float32(self, given: Array) -> Array:
        with np.errstate(over="ignore"):
            rows: Array = np.ascontiguousarray(given, "<f4")
        # If the sum is finite, all numbers are finite, so single numbers are checked only if the sum is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(rows.sum(dtype=np.float64)):
                return rows
        is_finite = np.isfinite(rows)
        count = int(rows.size - np.count_nonzero(is_finite))
        if not count:
            return rows
        row, column = (int(i[0]) for i in np.nonzero(~is_finite))
        what = f"table {self._copy.name!r}: row {self._rows + row} of {self._copy.source} holds {given[row, column]}"
        is_lost = np.isfinite(given) & ~is_finite
        if is_lost.any():
            row, column = (int(i[0]) for i in np.nonzero(is_lost))
            raise ExportError(
                f"table {self._copy.name!r}: row {self._rows + row} of {self._copy.source} holds "
                f"{given[row, column]}, float32 ends at 3.4e38"
            )
        if not self._copy.allow_nonfinite:
            raise ExportError(f"{what}; nothing was imported (--allow_nonfinite imports NaN and infinity all the same)")
        self._nonfinite += count
        return rows

    def _stored(self, rows: Array) -> Array:
        self._rows += len(rows)
        if self._rounding is None:
            return rows
        numbers, scales = self._rounding.add(rows)
        if scales is not None:
            self._scales.append(scales)
        return numbers
