"""The interface of all readers: they yield a table's rows, and keys if there are any, in chunks of a few megabytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from model_export.errors import ExportError
from service.types import Array

# Bytes of float32 that a reader yields at a time. What a chunk is made of (float64, a transposed copy, masks) stays
# below four times this number.
CHUNK_BYTES = 8 << 20

Keys = Sequence[str] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in their order. rows: [n, D] of any float dtype; keys: one per row, of the formats that hold keys."""

    rows: Array
    keys: Keys | None = None


class TableReader(Protocol):
    """An opened table. Concurrency: one caller at a time."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows, for a progress bar; None where the format tells it only at the end."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Yields all rows; chunks may differ in size, none is empty.

        Raises:
          ExportError: the file is not what its header says.
          OSError, ValueError: the file can not be read; the message is in the words of the library.
        """
        ...


def rows_per_chunk(dim: int) -> int:
    """Returns how many rows of D numbers make a chunk, at least 1.

    >>> rows_per_chunk(64), rows_per_chunk(1 << 30)
    (32768, 1)
    """
    return max(1, CHUNK_BYTES // (4 * max(1, dim)))


def missing_library(library: str, needed_for: str) -> ExportError:
    """Returns the error of a library that is not installed."""
    return ExportError(f"{needed_for} need {library}, which is not installed: pip install 'embedding-server[import]'")
