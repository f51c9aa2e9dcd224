"""Reads .csv and .tsv files: a key column becomes the vocabulary, the other columns or the named ones become rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.byte_source import ByteSource
from model_export.importers.table_reader import Chunk, TableReader, rows_per_chunk
from model_export.importers.text_keys import Errors, KeyDtypeChoice, KeysChoice, decoded, is_int64, is_number, option

_HeaderChoice = Literal["first", "none"]
# Marks of missing numbers, which are no names of columns.
_MISSING = ("", "na", "n/a", "null", "none")
_WIDTH = "{where} has {found} columns, the first line has {wanted}"


def open_csv(address: Address) -> TableReader:
    """Opens the table at PATH.csv or PATH.tsv and returns its reader.

    Raises:
      ExportError: a column is not there, or the file does not tell whether its first line is a header or its first
        column keys.
    """
    source = ByteSource.of(address)
    is_tsv = address.options.get("format", source.unpacked_name.rpartition(".")[2]) == "tsv"
    lines = _Lines(source, "\t" if is_tsv else ",")
    first = [cells for _, cells in islice(lines.rows(), 2)]
    if not first or not first[0]:
        raise ExportError(f"{source.name} is empty")
    names = first[0] if _has_header(address, source.name, first) else None
    sample = first[-1] if names is not None else first[0]
    if len(sample) != len(first[0]):
        raise ExportError(_WIDTH.format(where=f"{source.name}, line 2", found=len(sample), wanted=len(first[0])))
    key = _key_column(address, source.name, names, sample)
    columns = _vector_columns(address, source.name, names, key, len(first[0]))
    dtype = option(address.options, "key_dtype", KeyDtypeChoice, address.text)
    if key is not None and dtype is None:
        dtype = "int64" if is_int64(sample[key]) else "string"
    errors = option(address.options, "errors", Errors, address.text) or "strict"
    return _Csv(lines, names, len(first[0]), key, tuple(columns), dtype == "int64", errors)


@dataclass(frozen=True, slots=True)
class _Lines:
    source: ByteSource
    delimiter: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields the last line's number and the cells of each record; bytes that are no UTF-8 become surrogates."""
        with self._text() as text:
            reader = csv.reader(text, delimiter=self.delimiter, strict=True)
            try:
                for cells in reader:
                    yield reader.line_num, cells
            except csv.Error as error:
                raise ExportError(f"{self.source.name}, line {reader.line_num}: {error}") from error

    @contextmanager
    def _text(self) -> Iterator[Any]:
        with self.source.open() as file:
            # The newline is "\n", because a key may hold other line breaks.
            yield io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="\n")


@dataclass(frozen=True, slots=True)
class _Csv:
    lines: _Lines
    names: Sequence[str] | None
    width: int
    key: int | None
    columns: tuple[int, ...]
    has_integers: bool
    errors: str

    @property
    def num_rows(self) -> int | None:
        return None

    def chunks(self) -> Iterator[Chunk]:
        step = rows_per_chunk(len(self.columns))
        rows: list[list[float]] = []
        keys: list[Any] = []
        for line, cells in islice(self.lines.rows(), self.names is not None, None):
            where = f"{self.lines.source.name}, line {line}"
            if len(cells) != self.width:
                raise ExportError(_WIDTH.format(where=where, found=len(cells), wanted=self.width))
            if self.key is not None:
                key = self._key(cells[self.key], where)
                if key is None:
                    continue
                keys.append(key)
            rows.append([self._number(cells[column], column, where) for column in self.columns])
            if len(rows) == step:
                yield Chunk(np.array(rows), keys if self.key is not None else None)
                rows, keys = [], []
        if rows:
            yield Chunk(np.array(rows), keys if self.key is not None else None)

    def _key(self, cell: str, where: str) -> str | int | None:
        if not self.has_integers:
            return decoded(cell.encode("utf-8", "surrogateescape"), self.errors, where)
        if not is_int64(cell):
            raise ExportError(f"{where}: the key {cell!r} is no int64; add ?key_dtype=string to import keys as strings")
        return int(cell)

    def _number(self, cell: str, column: int, where: str) -> float:
        if not is_number(cell.encode("utf-8", "surrogateescape")):
            name = f"column {column + 1}" if self.names is None else f"column {self.names[column]!r}"
            raise ExportError(
                f"{where}: {name} holds {cell[:60]!r}, which is no number; name the columns of numbers "
                "with ?vector=COLUMN,COLUMN"
            )
        return float(cell)


def _has_header(address: Address, name: str, first: Sequence[Sequence[str]]) -> bool:
    if said := option(address.options, "header", _HeaderChoice, address.text):
        return said == "first"
    # The first cell may be a key or the name of the keys' column; the others are numbers in a row of a table.
    cells = [cell.strip() for cell in (first[0][1:] or first[0])]
    are_numbers = {is_number(cell.encode("utf-8", "surrogateescape")) for cell in cells}
    is_doubtful = len(are_numbers) > 1 or any(cell.lower() in _MISSING for cell in cells)
    if are_numbers == {True} and all(is_int64(cell) for cell in cells):
        # pandas names columns without names 0, 1, 2, ...
        counted = [[str(i + start) for i in range(len(cells))] for start in (0, 1)]
        has_fractions = len(first) > 1 and not all(is_int64(cell.strip()) for cell in first[1][1:])
        is_doubtful = cells in counted or has_fractions
    if is_doubtful:
        raise ExportError(
            f"{name}: its first line may hold names of columns or be a row: add ?header=first (names) or ?header=none"
        )
    return are_numbers == {False}


def _key_column(address: Address, name: str, names: Sequence[str] | None, sample: Sequence[str]) -> int | None:
    said = option(address.options, "keys", KeysChoice, address.text)
    if (column := address.options.get("key")) is not None:
        if said is not None:
            raise ExportError(f"{address.text}: give ?key= or ?keys=, not both")
        return _column(name, names, column)
    if said is not None:
        return 0 if said == "first" else None
    if not is_number(sample[0].encode("utf-8", "surrogateescape")):
        return 0
    first = f"?key={names[0]}" if names is not None and names[0] else "?keys=first"
    raise ExportError(
        f"{name}: its first column holds numbers, and the file does not tell whether they are keys: add {first} (keys) "
        "or ?keys=none (part of the vectors)"
    )


def _vector_columns(address: Address, name: str, names: Sequence[str] | None, key: int | None, width: int) -> list[int]:
    if said := address.options.get("vector"):
        columns = [_column(name, names, column) for column in said.split(",")]
    else:
        columns = [column for column in range(width) if column != key]
    if not columns or len(set(columns)) != len(columns) or key in columns:
        raise ExportError(f"{address.text}: the vectors' columns are none, or one is named twice or holds the keys")
    return columns


def _column(name: str, names: Sequence[str] | None, column: str) -> int:
    if names is None:
        raise ExportError(f"{name} has no column {column!r}: its first line holds numbers, not names of columns")
    if names.count(column) != 1:
        what = "has no column" if column not in names else "has more than one column"
        raise ExportError(f"{name} {what} {column!r}; its columns are {', '.join(map(repr, names))}")
    return names.index(column)
