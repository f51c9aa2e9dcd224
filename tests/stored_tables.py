"""Makes tables of every stored dtype with numpy alone, at unaligned addresses as in a mapped checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.tables.table import MappedTable
from service.types import TableInfo

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")


@dataclass(frozen=True)
class StoredTable:
    """A table in its stored dtype, and the float32 numbers that lookups of it must read.

    numbers: [V, D] float32 that lookups must read. raw, scales: the stored bytes; scales is [0] unless int8 or int4.
    """

    dtype: str
    numbers: np.ndarray
    raw: np.ndarray
    scales: np.ndarray

    @property
    def mapped(self) -> MappedTable:
        """The table as a MappedTable, as the server holds it."""
        nbytes = self.raw.nbytes + self.scales.nbytes
        info = TableInfo("tag", *self.numbers.shape, dtype=self.dtype, nbytes=nbytes, features=())
        return MappedTable(info, self.raw, self.scales)

    @property
    def place(self) -> tuple[int, np.ndarray, np.ndarray, int, int]:
        """The table as the native kernels' first arguments."""
        return self.mapped.place


def unaligned(array: np.ndarray, offset: int = 1) -> np.ndarray:
    """Returns a read-only copy of an array that starts `offset` bytes after an aligned address."""
    data = bytes(offset) + array.tobytes()
    return np.frombuffer(data, array.dtype, array.size, offset).reshape(array.shape)


def nibbles(numbers: np.ndarray) -> np.ndarray:
    """Packs [V, D] integers from -8 to 7 into [V, ceil(D / 2)] bytes; an even column is in the low half of its byte.

    >>> [f"{byte:02x}" for byte in nibbles(np.array([[1, -7, 3]]))[0]]
    ['91', '03']
    """
    rows = [[int(number) % 16 for number in row] for row in numbers]
    padded = [[*row, 0] if len(row) % 2 else row for row in rows]
    pairs = [[row[i] + 16 * row[i + 1] for i in range(0, len(row), 2)] for row in padded]
    return np.array(pairs, np.uint8).reshape(len(rows), -1)


def store(numbers: np.ndarray, dtype: str = "float32", *, offset: int = 1) -> StoredTable:
    """Converts float32 numbers to a table of another dtype, rounded as described below.

    int8: a row's scale is its largest magnitude / 127, so -127, 0 and 127 times a power of two are exact. int4: the
    same with 7.
    """
    numbers = np.asarray(numbers, np.float32)
    scales = np.empty(0, np.float32)
    if dtype == "float32":
        raw, seen = numbers, numbers
    elif dtype == "float16":
        raw = numbers.astype(np.float16)
        seen = raw.astype(np.float32)
    elif dtype == "bfloat16":
        # bfloat16 is the upper half of the float32, not rounded; tests that compare numbers compare with what is
        # stored.
        raw = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        seen = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        scales = (np.abs(numbers).max(axis=1) / np.float32(127 if dtype == "int8" else 7)).astype(np.float32)
        steps = np.divide(numbers, scales[:, None], out=np.zeros_like(numbers), where=scales[:, None] > 0)
        raw = np.rint(steps).astype(np.int8)
        seen = raw.astype(np.float32) * scales[:, None]
        scales = unaligned(scales, offset)
        if dtype == "int4":
            raw = nibbles(raw)
    return StoredTable(dtype, seen, unaligned(raw, offset), scales)
