"""Implements the index of a vocabulary's keys in plain Python, for tests and for servers without the native core.

The functions have the parameters and results of the native core's, but the index is a dict from each key to its number.
A dict takes some 100 bytes a key.

Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
FastHashSpec, over the bytes of a string or the decimal digits of an integer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from service.tables.fingerprint import fingerprint64
from service.types import Array

OK = -1
NO_EMPTY_KEY = -1
# Factor by which find_strings() and find_integers() return two numbers in one: number of unknown keys * STRANGER +
# position of the first one. It is larger than the number of keys in any request.
STRANGER = 1 << 32

_NEWLINE = 10
_INTEGER = re.compile(rb"-?[0-9]+")
_INT64 = np.iinfo(np.int64)

Index = dict[Any, int]


def count_lines(data: Array) -> int:
    """Returns the number of lines in a file's bytes; the last line may lack its newline."""
    return int(np.count_nonzero(data == _NEWLINE)) + (data.size > 0 and int(data[-1]) != _NEWLINE)


def find_lines(data: Array, starts: Array) -> None:
    """Writes the offset of each of N lines into starts, [N+1] int64; the last is where a next line would begin."""
    behind = np.flatnonzero(data == _NEWLINE) + 1
    starts[:1] = 0
    starts[1 : 1 + behind.size] = behind
    starts[1 + behind.size :] = data.size + 1


def line_length(data: Array, starts: Array, line: int) -> int:
    """Returns the length of a line in bytes without LF or CR LF, as TensorFlow reads vocabulary files."""
    return len(next(_lines(data, starts[line : line + 2])))


def _lines(data: Array, starts: Array) -> Iterator[bytes]:
    text = data.data
    for begin, behind in pairwise(starts.tolist()):
        yield bytes(text[begin : behind - 1]).removesuffix(b"\r")


def parse_integers(data: Array, starts: Array, keys: Array) -> int:
    """Parses each line as a decimal int64 into keys; returns OK, or the number of the first line that is no int64."""
    for line, text in enumerate(_lines(data, starts)):
        if not _INTEGER.fullmatch(text):
            return line
        key = int(text)
        if not _INT64.min <= key <= _INT64.max:
            return line
        keys[line] = key
    return OK


def index_strings(data: Array, starts: Array, index: Index) -> int:
    """Fills a vocabulary's empty index with its file's lines; returns OK, or the first repeated line's number."""
    return _fill(index, _lines(data, starts))


def index_integers(keys: Array, index: Index) -> int:
    """Fills a vocabulary's empty index with integer keys; returns OK, or the position of the first repeated key."""
    return _fill(index, keys.tolist())


def _fill(index: Index, keys: Iterable[Any]) -> int:
    for number, key in enumerate(keys):
        if index.setdefault(key, number) != number:
            return number
    return OK


def find_strings(
    data: Array,
    starts: Array,
    index: Index,
    keys: Array,
    splits: Array,
    empty_id: int,
    first_id: int,
    first_bucket: int,
    oov_id: int,
    num_oov_buckets: int,
    ids: Array,
) -> int:
    """Finds the row of each string key: first_id + its line, or the row of its OOV bucket, or oov_id.

    Returns OK if the vocabulary has all keys, else (number of unknown keys) * STRANGER + position of the first.

    Args:
      data, starts, index: the vocabulary.
      keys: concatenated bytes of N keys, key i from splits[i] to splits[i + 1].
      empty_id: row of the empty string, or NO_EMPTY_KEY if it is a key like any other.
      first_bucket, num_oov_buckets: rows of the buckets; 0 for none.
      ids: [N] int64, written.
    """
    text = keys.data
    sent = [bytes(text[begin:end]) for begin, end in pairwise(splits.tolist())]

    def row_of(key: bytes) -> int | None:
        if not key and empty_id != NO_EMPTY_KEY:
            return empty_id
        return first_id + index[key] if key in index else None

    return _find(sent, row_of, fingerprint64, first_bucket, oov_id, num_oov_buckets, ids)


def find_integers(
    keys: Array,
    index: Index,
    sent: Array,
    first_id: int,
    first_bucket: int,
    oov_id: int,
    num_oov_buckets: int,
    ids: Array,
) -> int:
    """Finds the row of each integer key: first_id + its place in keys, or the row of its OOV bucket, or oov_id.

    Returns OK if the vocabulary has all keys, else (number of unknown keys) * STRANGER + position of the first.

    Args:
      keys, index: the vocabulary. sent: the [N] keys of a request.
      first_bucket, num_oov_buckets: rows of the buckets; 0 for none.
      ids: [N] int64, written.
    """

    def row_of(key: int) -> int | None:
        return first_id + index[key] if key in index else None

    def hash_of(key: int) -> int:
        return fingerprint64(str(key).encode())

    return _find(sent.tolist(), row_of, hash_of, first_bucket, oov_id, num_oov_buckets, ids)


def _find(
    sent: Iterable[Any],
    row_of: Callable[[Any], int | None],
    hash_of: Callable[[Any], int],
    first_bucket: int,
    oov_id: int,
    num_oov_buckets: int,
    ids: Array,
) -> int:
    strangers: list[int] = []
    for place, key in enumerate(sent):
        row = row_of(key)
        if row is None:
            strangers.append(place)
            row = first_bucket + hash_of(key) % num_oov_buckets if num_oov_buckets else oov_id
        ids[place] = row
    return len(strangers) * STRANGER + strangers[0] if strangers else OK
