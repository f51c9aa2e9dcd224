"""The interface of all readers: a reader yields a table's rows, and its keys if it has any, in chunks of megabytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from model_export.errors import ExportError
from service.types import Array

# Size in bytes of a chunk's rows as float32. A reader's temporary arrays for a chunk (float64, a transposed copy,
# masks) stay below four times this size.
CHUNK_BYTES = 8 << 20

Keys = Sequence[str] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a table. rows: [n, D] of any float dtype; keys: one per row, if the format holds keys."""

    rows: Array
    keys: Keys | None = None


class TableReader(Protocol):
    """The interface of a reader of one opened table to import. Concurrency: one caller at a time."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows of the table, for a progress bar; None if the file format does not tell it in advance."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Yields all rows of the opened table in chunks; the chunks may differ in size, and none is empty.

        Raises:
          ExportError: the file does not fit its header.
          OSError, ValueError: the file can not be read; the message is the library's.
        """
        ...


def rows_per_chunk(dim: int) -> int:
    """Returns the number of rows in a chunk of CHUNK_BYTES, if a row has `dim` numbers; at least 1.

    >>> rows_per_chunk(64), rows_per_chunk(1 << 30)
    (32768, 1)
    """
    return max(1, CHUNK_BYTES // (4 * max(1, dim)))


def missing_library(library: str, needed_for: str) -> ExportError:
    return ExportError(f"{needed_for} need {library}, which is not installed: in a checkout, pip install '.[import]'")
