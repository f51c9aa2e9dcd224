"""Reads an uncompressed matrix from a file in chunks, and does not map it, because mapped pages count as used memory.

C order is read directly. Fortran order is read column by column for the rows of a chunk, and transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.reduced_table import widened
from model_export.importers.address import Address
from model_export.importers.table_reader import Chunk, TableReader, rows_per_chunk
from service.artifact.crc32c import crc32c_of, masked
from service.types import Array

_RAW_DTYPES = {
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "bfloat16": "<u2",
}


@dataclass(frozen=True, slots=True)
class NumberType:
    """The stored form of a number. dtype: numpy's, with byte order; for bfloat16, which numpy lacks, uint16."""

    dtype: np.dtype[np.generic]
    is_bfloat16: bool = False

    def numbers(self, stored: Array) -> Array:
        """Converts numbers, as a matrix file stores them, to a float dtype of numpy; bfloat16 becomes float32."""
        return widened(stored, "bfloat16") if self.is_bfloat16 else stored


def open_raw(address: Address) -> TableReader:
    """Opens a file of numbers without a header, PATH?format=raw&dim=D[&dtype=float32], as HugeCTR's emb_vector.

    Raises:
      ExportError: dim or dtype is missing or invalid, or the file does not hold whole rows.
    """
    dim, dtype = address.options.get("dim", ""), address.options.get("dtype", "float32")
    if not dim.isdecimal() or int(dim) < 1 or dtype not in _RAW_DTYPES:
        raise ExportError(
            f"{address.text}: a raw matrix needs ?format=raw&dim=D, D numbers a row, little-endian; &dtype= is one of "
            f"{', '.join(_RAW_DTYPES)} (default: float32)"
        )
    number = NumberType(np.dtype(_RAW_DTYPES[dtype]), is_bfloat16=dtype == "bfloat16")
    size, row_bytes = address.path.stat().st_size, int(dim) * number.dtype.itemsize
    if size % row_bytes:
        raise ExportError(f"{address.path} has {size:,} bytes, no multiple of the {row_bytes:,} of {dim} x {dtype}")
    return RawMatrix(address.path, 0, size // row_bytes, int(dim), number)


@dataclass(frozen=True, slots=True)
class RawMatrix:
    """A TableReader of a [num_rows, dim] matrix that starts at an offset in a file.

    crc32c: masked checksum of the bytes, compared while all rows are read in order; None: there is none.
    """

    path: Path
    offset: int
    num_rows: int
    dim: int
    number: NumberType
    is_fortran: bool = False
    crc32c: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        self.check_size()
        step, crc = rows_per_chunk(self.dim), 0
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, self.num_rows, step):
                stored = self._stored(file, start, min(start + step, self.num_rows))
                if self.crc32c is not None:
                    crc = crc32c_of(stored, crc)
                yield Chunk(self.number.numbers(stored))
        if self.crc32c is not None and masked(crc) != self.crc32c:
            raise ExportError(f"{self.path} is damaged: its numbers do not have the checksum that was saved with them")

    def read(self, start: int, stop: int) -> Array:
        with self.path.open("rb", buffering=0) as file:
            return self.number.numbers(self._stored(file, start, stop))

    def read_rows(self, rows: Array) -> Array:
        """Reads rows [n] int64 of a matrix in C order, in the order of their numbers in `rows`."""
        item = self.number.dtype.itemsize
        stored = np.empty((len(rows), self.dim), self.number.dtype)
        with self.path.open("rb", buffering=0) as file:
            for i, row in enumerate(rows.tolist()):
                file.seek(self.offset + row * self.dim * item)
                self._fill(file, stored[i])
        return self.number.numbers(stored)

    def check_size(self) -> None:
        end = self.offset + self.num_rows * self.dim * self.number.dtype.itemsize
        size = self.path.stat().st_size
        if size < end:
            raise ExportError(
                f"{self.path} is cut short: {self.num_rows} rows of {self.dim} numbers end at byte {end:,}, the file "
                f"at {size:,}; copy it again"
            )

    def _stored(self, file: BinaryIO, start: int, stop: int) -> Array:
        rows, item = stop - start, self.number.dtype.itemsize
        if not self.is_fortran:
            whole = np.empty((rows, self.dim), self.number.dtype)
            file.seek(self.offset + start * self.dim * item)
            self._fill(file, whole)
            return whole
        columns = np.empty((self.dim, rows), self.number.dtype)
        for column in range(self.dim):
            file.seek(self.offset + (column * self.num_rows + start) * item)
            self._fill(file, columns[column])
        return np.ascontiguousarray(columns.T)

    def _fill(self, file: BinaryIO, numbers: Array) -> None:
        # A read of more than 2 GB may return only part of the bytes.
        view = numbers.reshape(-1).view(np.uint8).data
        while view:
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise ExportError(f"{self.path} became shorter while it was read")
            view = view[count:]
