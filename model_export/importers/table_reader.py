"""The interface of the readers of imported tables, and readers that add keys or leave out duplicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol, get_args

import numpy as np

from model_export.errors import ExportError
from model_export.spec.features import line_fault
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

    def chunks(self) -> Iterator[Chunk]:
        """Yields all rows of the opened table in chunks; the chunks may differ in size, and none is empty.

        Raises:
          ExportError: the file does not fit its header.
          OSError, ValueError: the file can not be read; the message is the library's.
        """


@dataclass(frozen=True, slots=True)
class Rows:
    """A TableReader. chunks: a function that yields all rows, from the first one, at each call."""

    num_rows: int | None
    chunks: Callable[[], Iterator[Chunk]]


def rows_per_chunk(dim: int) -> int:
    """Returns the number of rows in a chunk of CHUNK_BYTES, if a row has `dim` numbers; at least 1.

    >>> rows_per_chunk(64), rows_per_chunk(1 << 30)
    (32768, 1)
    """
    return max(1, CHUNK_BYTES // (4 * max(1, dim)))


def chunked(rows: Iterable[tuple[Any, Any]], dim: int, *, has_keys: bool) -> Iterator[Chunk]:
    left = iter(rows)
    while several := list(islice(left, rows_per_chunk(dim))):
        yield Chunk(np.array([row for _, row in several]), [key for key, _ in several] if has_keys else None)


def missing_library(library: str, needed_for: str) -> ExportError:
    return ExportError(f"{needed_for} need {library}, which is not installed: in a checkout, pip install '.[import]'")


# What to do with a key that is not UTF-8: refuse the file, change the key's bytes as bytes.decode() does, or leave the
# row out ("skip", which also leaves out keys that no vocabulary can hold).
Errors = Literal["strict", "replace", "ignore", "skip"]
KeysChoice = Literal["none", "first"]
KeyDtypeChoice = Literal["int64", "string"]

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INTEGER = re.compile(r"0|-?[1-9]\d*")
_INT64 = range(-(2**63), 2**63)


def option(options: Mapping[str, str], name: str, choices: object, what: str) -> str | None:
    """Returns the value of an address's option, or None; raises ExportError if it is none of the Literal `choices`."""
    value = options.get(name)
    if value is not None and value not in get_args(choices):
        raise ExportError(f"{what}: {name}={value}; expected {' or '.join(get_args(choices))}")
    return value


def decoded(key: bytes, errors: str, where: str) -> str | None:
    """Decodes a key by the option errors=; None means that its row is left out. Raises ExportError.

    >>> decoded(b"abc\\xe5", "replace", "line 3")
    'abc\ufffd'
    """
    try:
        text = key.decode("utf-8", "strict" if errors == "skip" else errors)
        return None if errors == "skip" and line_fault(text) else text
    except UnicodeDecodeError as error:
        if errors == "skip":
            return None
        raise ExportError(
            f"{where}: the key {key[:60]!r} is not UTF-8; add ?errors=replace or ?errors=ignore to change its bytes, "
            "or ?errors=skip to leave the row out"
        ) from error


def is_number(text: bytes) -> bool:
    """Says whether a cell of a text file is a number in decimal notation.

    >>> [is_number(text) for text in (b"-1.5e3", b"7", b"nan", b"1_0", b"x")]
    [True, True, True, False, False]
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def is_int64(text: str) -> bool:
    """Says whether a text is an int64 as programs print it, so that no other text means the same key.

    >>> [is_int64(text) for text in ("-7", "007", "9223372036854775808")]
    [True, False, False]
    """
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT64


# The option of all formats for keys that several rows have: which of these rows is imported.
DUPLICATES = "duplicates"
_Duplicates = Literal["error", "first", "last"]


def with_keys(reader: TableReader, keys: Keys | None, options: Mapping[str, str], what: str) -> TableReader:
    """Returns a reader with the keys of a separate file, if there are any, and by the option duplicates=.

    Raises:
      ExportError: the option has an unknown value.
    """
    joined = reader if keys is None else Rows(reader.num_rows, partial(_keyed, reader, keys, what))
    said = option(options, DUPLICATES, _Duplicates, what)
    return joined if said in (None, "error") else Rows(None, partial(_distinct, joined, said == "last", what))


def _keyed(reader: TableReader, keys: Keys, what: str) -> Iterator[Chunk]:
    done = 0
    for chunk in reader.chunks():
        if chunk.keys is not None:
            raise ExportError(f"{what} has keys of its own; leave --keys out")
        some = keys[done : done + len(chunk.rows)]
        done += len(chunk.rows)
        if len(some) == len(chunk.rows):
            yield Chunk(chunk.rows, some)
    if done != len(keys):
        raise ExportError(f"{what} has {done:,} rows and {len(keys):,} keys; one key a row")


def _distinct(reader: TableReader, is_last: bool, what: str) -> Iterator[Chunk]:
    """Yields one row per key of a TableReader: the last one if is_last, else the first."""

    def keys_of(chunk: Chunk) -> Sequence[str | int]:
        if chunk.keys is None:
            raise ExportError(f"{what} has no keys; leave ?{DUPLICATES}= out")
        return chunk.keys

    last: dict[str | int, int] = {}
    if is_last:
        every = (key for chunk in reader.chunks() for key in keys_of(chunk))
        last = {key: row for row, key in enumerate(every)}
    seen: set[str | int] = set()
    done = 0
    for chunk in reader.chunks():
        keys = keys_of(chunk)
        kept = []
        for i, key in enumerate(keys):
            if last[key] == done + i if is_last else key not in seen:
                kept.append(i)
                seen.add(key)
        done += len(keys)
        if kept:
            yield Chunk(chunk.rows[np.array(kept)], [keys[i] for i in kept])  # type: ignore[arg-type]
