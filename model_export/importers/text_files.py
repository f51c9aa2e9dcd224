"""Reads tables of numbers in text: CSV, TSV, GloVe, fastText's .vec, word2vec's two forms, and matrices without words.

Words become the keys of the rows. Only a line feed ends a line; a word may hold any other character.

Source: word2vec.c of the word2vec tool (the end of TrainModel). GloVe's files are the same without the first line.
"""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Literal

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address, ByteSource
from model_export.importers.table_reader import (
    Chunk,
    Errors,
    KeyDtypeChoice,
    KeysChoice,
    Rows,
    TableReader,
    chunked,
    decoded,
    is_int64,
    is_number,
    option,
)

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
    num_rows: None = None

    def chunks(self) -> Iterator[Chunk]:
        return chunked(self._rows(), len(self.columns), has_keys=self.key is not None)

    def _rows(self) -> Iterator[tuple[str | int | None, list[float]]]:
        for line, cells in islice(self.lines.rows(), self.names is not None, None):
            where = f"{self.lines.source.name}, line {line}"
            if len(cells) != self.width:
                raise ExportError(_WIDTH.format(where=where, found=len(cells), wanted=self.width))
            key = None if self.key is None else self._key(cells[self.key], where)
            if key is not None or self.key is None:
                yield key, [self._number(cells[column], column, where) for column in self.columns]

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


_LONGEST_WORD_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_FRACTION = re.compile(rb"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
_LAST_SEPARATOR = re.compile(rb"([ \t])[^ \t]*$")
_BLANKS = b" \t\r\n"
# First bytes of fastText's own binary format. Source: FASTTEXT_FILEFORMAT_MAGIC_INT32 in fastText's src/fasttext.cc.
_FASTTEXT = (793712314).to_bytes(4, "little")
_ZIP = b"PK\3\4"


def open_text(address: Address) -> TableReader:
    """Opens a text file of vectors, with or without words, with or without word2vec's first line of two integers.

    Raises:
      ExportError: the file has no numbers, or does not tell whether its lines begin with keys.
    """
    source = ByteSource.of(address)
    with source.open() as file:
        first = file.readline(_LONGEST_WORD_BYTES * 16).removeprefix(BOM_UTF8)
        second = file.readline(_LONGEST_WORD_BYTES * 16)
    header = _header(first)
    wanted = address.options.get("format")
    errors = option(address.options, "errors", Errors, address.text) or "strict"
    keys = option(address.options, "keys", KeysChoice, address.text)
    if wanted == "word2vec" and header is None:
        raise ExportError(f"{source.name}: its first line is not the header of word2vec, such as '3000000 300'")
    if header is not None and wanted != "glove":
        num_rows, dim = header
        separator = _separator(second)
        count = _fields(second, separator)
        has_keys = keys == "first" if keys else count != dim
        if count not in (dim, dim + 1) and second and all(is_number(field) for field in second.split()):
            raise ExportError(f"{source.name}, line 2 has {count} numbers, its first line says {dim} after each key")
        return _Text(source, num_rows, dim, has_keys, separator, errors)
    separator, count = _separator(first), len(first.split())
    has_keys = keys == "first" if keys else count > 1 and _has_words(source, first)
    dim = count - has_keys
    if dim < 1 or (count == 1 and not is_number(first)):
        raise ExportError(f"{source.name}: line 1 has no numbers between blanks or tabs; ?format=csv reads commas")
    return _Text(source, None, dim, has_keys, separator, errors)


def open_binary(address: Address) -> TableReader:
    source = ByteSource.of(address)
    errors = option(address.options, "errors", Errors, address.text) or "strict"
    with source.open() as file:
        line = file.readline(100)
    if line.startswith(_FASTTEXT):
        raise ExportError(
            f"{source.name} is a fastText model, whose word vectors are computed from its rows of subwords; import its "
            ".vec file, or write one with fastText: for each word of model.words, the word and "
            "model.get_word_vector(word)"
        )
    if line.startswith(_ZIP):
        raise ExportError(f"{source.name} is not word2vec's binary format, but a zip archive; PyTorch's: ?format=torch")
    header = _header(line)
    if header is None:
        raise ExportError(f"{source.name} is not word2vec's binary format: no first line such as '3000000 300'")
    return Rows(None if errors == "skip" else header[0], partial(_binary_chunks, source, *header, errors))


def _header(line: bytes) -> tuple[int, int] | None:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) < 1:
        return None
    return int(parts[0]), int(parts[1])


def _separator(line: bytes) -> bytes:
    found = _LAST_SEPARATOR.search(line.rstrip(_BLANKS))
    return b" " if found is None else found.group(1)


def _fields(line: bytes, separator: bytes) -> int:
    # Counts the fields of a line between single separators, since a word may be a blank; a matrix whose columns are
    # aligned with several blanks has no words that are blanks.
    fields = line.rstrip(_BLANKS).split(separator)
    return len(line.split()) if b"" in fields else len(fields)


def _has_words(source: ByteSource, first: bytes) -> bool:
    # A word is not a number, but a key may be one. So one line that begins with a word shows that all lines begin with
    # keys. If there is no such line, the file may be a matrix.
    with source.open() as file:
        for line in chain([file.readline().removeprefix(BOM_UTF8)], file):
            if (begin := line[:_LONGEST_WORD_BYTES].split(None, 1)) and not is_number(begin[0]):
                return True
    count = len(first.split())
    raise ExportError(
        f"{source.name}: each line begins with a number, and the file does not tell whether it is a key: add "
        f"?keys=none ({count} numbers a row, no keys) or ?keys=first (a key and {count - 1} numbers)"
    )


@dataclass(frozen=True, slots=True)
class _Text:
    source: ByteSource
    header_rows: int | None
    dim: int
    has_keys: bool
    separator: bytes
    errors: str

    @property
    def num_rows(self) -> int | None:
        return None if self.errors == "skip" else self.header_rows

    def chunks(self) -> Iterator[Chunk]:
        return chunked(self._rows(), self.dim, has_keys=self.has_keys)

    def _rows(self) -> Iterator[tuple[str, np.ndarray]]:
        lines = 0
        with self.source.open() as file:
            for number, line in islice(enumerate(file, 1), 0 if self.header_rows is None else 1, None):
                lines += 1
                key, row = self._parsed(line.removeprefix(BOM_UTF8) if number == 1 else line, number)
                if key is not None:
                    yield key, row
        if self.header_rows is not None and lines != self.header_rows:
            how = "it is cut short" if lines < self.header_rows else "it goes on after them"
            raise ExportError(
                f"{self.source.name} has {lines:,} rows, its first line says {self.header_rows:,}: {how}; if its first "
                "line is a row, add ?format=glove"
            )

    def _parsed(self, line: bytes, number: int) -> tuple[str | None, np.ndarray]:
        # Returns the key ("" if the file has none; None to leave the row out) and the numbers of a line.
        where = f"{self.source.name}, line {number}"
        text = line.rstrip(_BLANKS)
        # The line is split from the right, because words may hold blanks, as some of GloVe's do.
        parts = text.rsplit(self.separator, self.dim) if self.has_keys else [b"", *text.split()]
        if self.has_keys and (b"" in parts[1:] or len(parts) != self.dim + 1):
            parts = text.lstrip().rsplit(None, self.dim)
        word = parts[0] if parts else b""
        last = word.split()[-1:]
        wanted = f"a key and {self.dim} numbers" if self.has_keys else f"{self.dim} numbers"
        if len(parts) != self.dim + 1 or (len(word.split()) > 1 and _FRACTION.fullmatch(last[0])):
            raise ExportError(f"{where} has {len(line.split())} columns, expected {wanted}")
        try:
            row = np.array([float(part) for part in parts[1:]])
        except ValueError as error:
            raise ExportError(f"{where}: {error}; expected {wanted}") from error
        return decoded(word, self.errors, where), row


def _binary_chunks(source: ByteSource, num_rows: int, dim: int, errors: str) -> Iterator[Chunk]:
    def rows() -> Iterator[tuple[str, np.ndarray]]:
        with source.open() as file:
            file.readline()
            words = _BinaryWords(file, source.name, dim)
            for i in range(num_rows):
                word, row = words.next_word(i, num_rows)
                if (key := decoded(word, errors, f"{source.name}, row {i}")) is not None:
                    yield key, row
            words.check_end(num_rows)

    return chunked(rows(), dim, has_keys=True)


class _BinaryWords:
    """A parser of word2vec's binary format, which reads the file block by block. Concurrency: one caller at a time."""

    def __init__(self, file: BinaryIO, name: str, dim: int) -> None:
        self._file, self._name, self._dim = file, name, dim
        self._data, self._position = b"", 0

    def next_word(self, row: int, num_rows: int) -> tuple[bytes, np.ndarray]:
        while (end := self._data.find(b" ", self._position)) < 0:
            if len(self._data) - self._position > _LONGEST_WORD_BYTES:
                raise ExportError(f"{self._name}, row {row}: no end of a word; it is not word2vec's binary format")
            self._more(row, num_rows)
        vector_bytes = 4 * self._dim
        word_bytes = end - self._position
        while len(self._data) - self._position < word_bytes + 1 + vector_bytes:
            self._more(row, num_rows)
        begin = self._position + word_bytes + 1
        # A newline after a vector is skipped: word2vec.c ends each vector with one, gensim does not.
        word = self._data[self._position : begin - 1].lstrip(b"\n")
        vector = np.frombuffer(self._data, "<f4", self._dim, begin)
        self._position = begin + vector_bytes
        return word, vector

    def check_end(self, num_rows: int) -> None:
        rest = self._data[self._position :] + self._file.read(2)
        if rest.strip(b"\n"):
            raise ExportError(f"{self._name} goes on after the {num_rows:,} words that its first line says")

    def _more(self, row: int, num_rows: int) -> None:
        block = self._file.read(max(_BLOCK_BYTES, 4 * self._dim))
        if not block:
            raise ExportError(f"{self._name} is cut short: it ends in row {row:,}, its first line says {num_rows:,}")
        self._data, self._position = self._data[self._position :] + block, 0
