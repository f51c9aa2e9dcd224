"""Joins rows with keys of a separate file, and leaves out rows whose key another row has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from model_export.errors import ExportError
from model_export.importers.table_reader import Chunk, Keys, TableReader
from model_export.importers.text_keys import option

# The option of all formats for keys that several rows have: which of these rows is imported.
DUPLICATES = "duplicates"
_Duplicates = Literal["error", "first", "last"]


@dataclass(frozen=True, slots=True)
class WithKeys:
    """A TableReader that gives the rows of another one the keys of a separate file.

    what: the table and its source, for messages.
    """

    reader: TableReader
    keys: Keys
    what: str

    @property
    def num_rows(self) -> int | None:
        return self.reader.num_rows

    def chunks(self) -> Iterator[Chunk]:
        done = 0
        for chunk in self.reader.chunks():
            if chunk.keys is not None:
                raise ExportError(f"{self.what} has keys of its own; leave --keys out")
            keys = self.keys[done : done + len(chunk.rows)]
            done += len(chunk.rows)
            if len(keys) == len(chunk.rows):
                yield Chunk(chunk.rows, keys)
        if done != len(self.keys):
            raise ExportError(f"{self.what} has {done:,} rows and {len(self.keys):,} keys; one key a row")


@dataclass(frozen=True, slots=True)
class WithoutDuplicates:
    """A TableReader without the rows whose key another row has. is_last: keeps the last row of a key, not the first."""

    reader: TableReader
    is_last: bool
    what: str

    @property
    def num_rows(self) -> int | None:
        return None

    def chunks(self) -> Iterator[Chunk]:
        last: dict[str | int, int] = {}
        if self.is_last:
            every = (key for chunk in self.reader.chunks() for key in self._keys(chunk))
            last = {key: row for row, key in enumerate(every)}
        seen: set[str | int] = set()
        done = 0
        for chunk in self.reader.chunks():
            keys: Sequence[str | int] = self._keys(chunk)
            kept = []
            for i, key in enumerate(keys):
                if last[key] == done + i if self.is_last else key not in seen:
                    kept.append(i)
                    seen.add(key)
            done += len(keys)
            if kept:
                yield Chunk(chunk.rows[np.array(kept)], [keys[i] for i in kept])  # type: ignore[arg-type]

    def _keys(self, chunk: Chunk) -> Sequence[str | int]:
        if chunk.keys is None:
            raise ExportError(f"{self.what} has no keys; leave ?{DUPLICATES}= out")
        return chunk.keys


def with_keys(reader: TableReader, keys: Keys | None, options: Mapping[str, str], what: str) -> TableReader:
    """Returns a reader with the keys of a separate file, if there are any, and by the option duplicates=.

    Raises:
      ExportError: the option has an unknown value.
    """
    joined = reader if keys is None else WithKeys(reader, keys, what)
    said = option(options, DUPLICATES, _Duplicates, what)
    return joined if said in (None, "error") else WithoutDuplicates(joined, said == "last", what)
