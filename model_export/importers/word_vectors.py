"""Reads word2vec's two formats, fastText's .vec and GloVe's text; the words become the keys of the rows.

Source: word2vec.c of the word2vec tool (the end of TrainModel). GloVe's files are the same without the first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.table_reader import Chunk, TableReader, rows_per_chunk

_LONGEST_WORD_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_FRACTION = re.compile(rb"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)


def open_text(address: Address) -> TableReader:
    """Opens a text file of word vectors, with or without word2vec's first line of two integers; raises ExportError."""
    with address.path.open("rb") as file:
        first = file.readline(_LONGEST_WORD_BYTES * 16)
    header = _header(first)
    wanted = address.options.get("format")
    if wanted == "word2vec" and header is None:
        raise ExportError(f"{address.path}: its first line is not the header of word2vec, such as '3000000 300'")
    if header is not None and wanted != "glove":
        return _Text(address.path, header[0], header[1], has_header=True)
    dim = len(first.split()) - 1
    if dim < 1:
        raise ExportError(f"{address.path}: line 1 has no word with numbers behind it")
    return _Text(address.path, None, dim, has_header=False)


def open_binary(address: Address) -> TableReader:
    """Opens a file in word2vec's binary format and returns its reader; raises ExportError."""
    with address.path.open("rb") as file:
        header = _header(file.readline(100))
    if header is None:
        raise ExportError(f"{address.path} is not word2vec's binary format: no first line such as '3000000 300'")
    return _Binary(address.path, *header)


def _header(line: bytes) -> tuple[int, int] | None:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) < 1:
        return None
    return int(parts[0]), int(parts[1])


@dataclass(frozen=True, slots=True)
class _Text:
    path: Path
    num_rows: int | None
    dim: int
    has_header: bool

    def chunks(self) -> Iterator[Chunk]:
        step = rows_per_chunk(self.dim)
        words: list[str] = []
        rows = np.empty((min(step, 1024), self.dim), np.float32)
        total = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and self.has_header:
                    continue
                if len(words) == len(rows):
                    rows = np.resize(rows, (min(2 * len(rows), step), self.dim))
                word, rows[len(words)] = self._parsed(line, number)
                words.append(word)
                if len(words) == step:
                    yield Chunk(rows, words)
                    total, words, rows = total + step, [], np.empty_like(rows)
        if words:
            yield Chunk(rows[: len(words)], words)
        total += len(words)
        if self.num_rows is not None and total != self.num_rows:
            raise ExportError(
                f"{self.path} has {total:,} words, its first line says {self.num_rows:,}: it is cut short"
            )

    def _parsed(self, line: bytes, number: int) -> tuple[str, list[float]]:
        # The line of a word and its numbers is split from the right, because some GloVe files have words with spaces.
        parts = line.rstrip(b" \t\r\n").rsplit(None, self.dim)
        word = parts[0] if parts else b""
        last = word.split()[-1:]
        if len(parts) != self.dim + 1 or (len(word.split()) > 1 and _FRACTION.fullmatch(last[0])):
            count = max(0, len(line.split()) - 1)
            raise ExportError(f"{self.path}, line {number}: {count} numbers, expected {self.dim} as in the first row")
        try:
            return _decoded(word.lstrip(), self.path, f"line {number}"), [float(part) for part in parts[1:]]
        except ValueError as error:
            raise ExportError(f"{self.path}, line {number}: {error}; expected a word and {self.dim} numbers") from error


@dataclass(frozen=True, slots=True)
class _Binary:
    path: Path
    num_rows: int
    dim: int

    def chunks(self) -> Iterator[Chunk]:
        step = rows_per_chunk(self.dim)
        with self.path.open("rb") as file:
            file.readline()
            words = _BinaryWords(file, self.path, self.dim)
            for start in range(0, self.num_rows, step):
                count = min(step, self.num_rows - start)
                rows, keys = np.empty((count, self.dim), np.float32), []
                for i in range(count):
                    word, rows[i] = words.next_word(start + i, self.num_rows)
                    keys.append(word)
                yield Chunk(rows, keys)
            words.check_end(self.num_rows)


class _BinaryWords:
    """A parser of word2vec's binary format, which reads the file block by block. Concurrency: one caller at a time."""

    def __init__(self, file: BinaryIO, path: Path, dim: int) -> None:
        self._file, self._path, self._dim = file, path, dim
        self._data, self._position = b"", 0

    def next_word(self, row: int, num_rows: int) -> tuple[str, np.ndarray]:
        """Parses the next word and its [D] float32 vector from a file in word2vec's binary format."""
        while (end := self._data.find(b" ", self._position)) < 0:
            if len(self._data) - self._position > _LONGEST_WORD_BYTES:
                raise ExportError(f"{self._path}, row {row}: no end of a word; it is not word2vec's binary format")
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
        return _decoded(word, self._path, f"row {row}"), vector

    def check_end(self, num_rows: int) -> None:
        """Raises ExportError if the word2vec file has bytes after its last vector."""
        rest = self._data[self._position :] + self._file.read(2)
        if rest.strip(b"\n"):
            raise ExportError(f"{self._path} goes on after the {num_rows:,} words that its first line says")

    def _more(self, row: int, num_rows: int) -> None:
        block = self._file.read(max(_BLOCK_BYTES, 4 * self._dim))
        if not block:
            raise ExportError(f"{self._path} is cut short: it ends in row {row:,}, its first line says {num_rows:,}")
        self._data, self._position = self._data[self._position :] + block, 0


def _decoded(word: bytes, path: Path, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise ExportError(f"{path}, {where}: the word {word[:60]!r} is not UTF-8; keys are UTF-8") from error
