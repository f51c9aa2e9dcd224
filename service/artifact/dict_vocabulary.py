"""Maps the keys that clients send to rows of a table, by a dict of the lines of a vocabulary file.

Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
FastHashSpec, over the bytes of a string or the decimal digits of an integer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.hashes import fingerprint64
from service.artifact.manifest import KeyDtype, Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange
from service.types import Array


def vocabulary_lines(path: Path) -> tuple[bytes, ...]:
    return lines_of(path.read_bytes())


def lines_of(content: bytes) -> tuple[bytes, ...]:
    """Returns the lines of a vocabulary file; only a line feed, or CR LF, ends a line, and the last one may lack it.

    Source: InputBuffer::ReadLine of tsl/lib/io/inputbuffer.cc (TensorFlow 2.21).

    >>> lines_of(b"new\\x0byork\\r\\na\\rb\\n")
    (b'new\\x0byork', b'a\\rb')
    """
    if not content:
        return ()
    return tuple(line.removesuffix(b"\r") for line in content.removesuffix(b"\n").split(b"\n"))


_INTEGER = re.compile(rb"-?[0-9]+")
_INT64 = np.iinfo(np.int64)


class DictVocabulary:
    """A vocabulary of strings (bytes) or of integers. Concurrency: any thread.

    Args:
      keys: the keys in the order of the file; empty: each key is hashed to a bucket.
    """

    def __init__(self, entry: VocabularyEntry, keys: list[Any]) -> None:
        self._entry, self._keys = entry, keys
        self._lines = {key: entry.first_id + line for line, key in enumerate(keys)}
        empty = {} if entry.empty_key_id is None else {b"": entry.empty_key_id}
        self._rows = {**self._lines, **empty} if empty else self._lines

    @property
    def key_dtype(self) -> KeyDtype:
        return self._entry.key_dtype

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    @property
    def lines(self) -> range:
        return range(self._entry.first_id, self._entry.first_id + len(self._keys))

    def keys_at(self, ids: Array) -> Array:
        return _array([self._keys[row - self._entry.first_id] for row in ids.tolist()], self.key_dtype)

    def rows_of(self, keys: Array) -> Array:
        found = [self._lines.get(key, -1) for key in keys.tolist()]
        return np.array(found, np.int64)

    @property
    def example_key(self) -> bytes | int:
        if not self._keys:
            return b"key" if self.key_dtype == "string" else 0
        example: bytes | int = self._keys[0]
        return example

    def key_of(self, row: int) -> bytes | int | None:
        return self._keys[row - self._entry.first_id] if row in self.lines else None

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps keys of any shape to int64 rows of the same shape; -1 for a key that is dropped.

        Raises IdOutOfRange if a key is unknown, and the vocabulary has neither a row nor a policy for it.
        """
        sent = [key.encode() if isinstance(key, str) else key for key in keys.reshape(-1).tolist()]
        rows = [self._row(key, place, input_name) for place, key in enumerate(sent)]
        return np.array(rows, np.int64).reshape(keys.shape)

    def _row(self, key: Any, place: int, input_name: str) -> int:
        entry = self._entry
        if (row := self._rows.get(key)) is not None:
            return row
        if entry.num_oov_buckets:
            text = key if isinstance(key, bytes) else str(key).encode()
            return entry.first_bucket + fingerprint64(text) % entry.num_oov_buckets
        if entry.oov_id is not None:
            return entry.oov_id
        if entry.on_oov == "drop":
            return -1
        shown = repr(key.decode(errors="replace")) if isinstance(key, bytes) else str(key)
        kind = "strings" if entry.key_dtype == "string" else "integers"
        raise IdOutOfRange(
            f'input "{input_name}": {shown} at position {place} is not in its vocabulary of {len(self._keys)} {kind}.'
        )


def _array(keys: list[Any], dtype: KeyDtype) -> Array:
    if dtype == "int64":
        return np.array(keys, np.int64)
    # Without the None at the end, which is cut off again, numpy would make strings of one size.
    return np.array([*keys, None], object)[:-1]


def open_vocabularies(artifact: Path, manifest: Manifest) -> dict[str, DictVocabulary]:
    return {
        name: DictVocabulary(entry, _read(artifact / entry.file, entry) if entry.file else [])
        for name, entry in manifest.vocabularies.items()
    }


def _read(path: Path, entry: VocabularyEntry) -> list[Any]:
    try:
        lines = vocabulary_lines(path)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read vocabulary {str(path)!r}: {error}") from error
    if not lines or len(lines) != entry.size:
        raise ArtifactError(f"vocabulary {path} has {len(lines)} lines, its manifest says {entry.size}")
    keys: list[Any] = list(lines)
    if entry.key_dtype == "int64":
        for line, text in enumerate(keys):
            if not _INTEGER.fullmatch(text) or not _INT64.min <= int(text) <= _INT64.max:
                raise ArtifactError(f"vocabulary {path}: line {line + 1} is {text[:100]!r}, expected an int64")
        keys = list(map(int, keys))
    if len(set(keys)) != len(keys):
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ArtifactError(f"vocabulary {path} holds {twice!r} twice")
    return keys
