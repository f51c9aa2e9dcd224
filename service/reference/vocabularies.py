"""Maps the keys that clients send to rows of a table, by a dict of a vocabulary file's lines.

Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
FastHashSpec, over the bytes of a string or the decimal digits of an integer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.manifest import KeyDtype, Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange
from service.reference.fingerprint import fingerprint64
from service.types import Array

_INTEGER = re.compile(rb"-?[0-9]+")
_INT64 = np.iinfo(np.int64)


class DictVocabulary:
    """A vocabulary of strings (bytes) or of integers. Concurrency: any thread.

    Args:
      keys: the keys in the order of the file; empty: each key is hashed to a bucket.
    """

    def __init__(self, entry: VocabularyEntry, keys: list[Any]) -> None:
        self._entry, self._keys = entry, keys
        self._rows = {key: entry.first_id + line for line, key in enumerate(keys)}
        if entry.empty_key_id is not None:
            self._rows[b""] = entry.empty_key_id

    @property
    def key_dtype(self) -> KeyDtype:
        """The dtype of the vocabulary's keys: "string" or "int64"."""
        return self._entry.key_dtype

    @property
    def example_key(self) -> bytes | int:
        """A key that the vocabulary maps to a row."""
        if not self._keys:
            return b"key" if self.key_dtype == "string" else 0
        example: bytes | int = self._keys[0]
        return example

    def key_of(self, row: int) -> bytes | int | None:
        """Returns the key in the line that stands for a row; None for a row without a line."""
        line = row - self._entry.first_id
        return self._keys[line] if 0 <= line < len(self._keys) else None

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


def open_vocabularies(artifact: Path, manifest: Manifest) -> dict[str, DictVocabulary]:
    """Reads the vocabulary files of an artifact; raises ArtifactError naming the file."""
    return {
        name: DictVocabulary(entry, _read(artifact / entry.file, entry) if entry.file else [])
        for name, entry in manifest.vocabularies.items()
    }


def _read(path: Path, entry: VocabularyEntry) -> list[Any]:
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n") if path.stat().st_size else []
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read vocabulary {str(path)!r}: {error}") from error
    if not lines or len(lines) != entry.size:
        raise ArtifactError(f"vocabulary {path} has {len(lines)} lines, its manifest says {entry.size}")
    # TensorFlow reads lines without LF or CR LF.
    keys: list[Any] = [line.removesuffix(b"\r") for line in lines]
    if entry.key_dtype == "int64":
        for line, text in enumerate(keys):
            if not _INTEGER.fullmatch(text) or not _INT64.min <= int(text) <= _INT64.max:
                raise ArtifactError(f"vocabulary {path}: line {line + 1} is {text[:100]!r}, expected an int64")
        keys = list(map(int, keys))
    if len(set(keys)) != len(keys):
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ArtifactError(f"vocabulary {path} holds {twice!r} twice")
    return keys
