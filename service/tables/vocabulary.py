"""Opens vocabularies, which map the keys that clients send to rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import accumulate
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, NamedTuple

import numpy as np

from service.artifact.manifest import KeyDtype, Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange
from service.tables import key_index
from service.tables.guarded_files import GuardedFiles
from service.types import Array

# The row number that a vocabulary's index writes for an unknown key, if the vocabulary has no row for unknown keys.
_NO_ROW = -1
_NO_BYTES = np.empty(0, np.uint8)


class KeyIndex(NamedTuple):
    """The arrays and numbers of a vocabulary with which the native core can look up keys.

    data: for strings the file's bytes, else [0]. keys: [N+1] int64 offsets of the lines, or the [N] int64 keys.
    slots: the native index over the keys. first_id, first_bucket, oov_id, num_oov_buckets: as in
      key_index.find_strings.
    empty_id: row of the empty string; None: it is a key like any other.
    refuses_strangers: an unknown key is an error. is_hashed: the vocabulary has no keys, each key goes to a bucket.
    """

    data: Array
    keys: Array
    slots: Any
    first_id: int
    first_bucket: int
    oov_id: int
    num_oov_buckets: int
    empty_id: int | None
    refuses_strangers: bool
    is_hashed: bool


class Strangers:
    """The counter of keys that clients sent and a vocabulary does not know. Concurrency: any thread, without a lock."""

    __slots__ = ("_by_thread",)

    def __init__(self) -> None:
        self._by_thread: dict[int, int] = {}

    def add(self, count: int) -> None:
        """Adds a number of keys that the vocabulary lacks to the count of the calling thread."""
        thread = get_ident()
        self._by_thread[thread] = self._by_thread.get(thread, 0) + count

    @property
    def total(self) -> int:
        """Number of keys, counted by all threads, that clients sent and the vocabulary lacks."""
        return sum(self._by_thread.copy().values())


class StringVocabulary:
    """A vocabulary of strings, which maps them to row ids. Concurrency: any thread.

    data: the file's bytes, mapped. starts: [N+1] int64 offsets of its lines. slots: the index over the lines.
    """

    __slots__ = ("_data", "_starts", "_slots", "_empty_id", "_oov", "_refuses", "_is_hashed", "strangers")
    key_dtype: ClassVar[KeyDtype] = "string"

    def __init__(self, entry: VocabularyEntry, data: Array, starts: Array, slots: Any) -> None:
        self._data, self._starts, self._slots = data, starts, slots
        self._empty_id = key_index.NO_EMPTY_KEY if entry.empty_key_id is None else entry.empty_key_id
        self._is_hashed = not entry.file
        self._oov, self._refuses = _oov(entry), _refuses_strangers(entry)
        self.strangers = Strangers()

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps an object array of strings (bytes or str) to int64 row ids of the same shape.

        An unknown key gets the row of its OOV bucket, or the OOV row, or -1 if it is to be dropped.

        Raises:
          IdOutOfRange: a key is unknown, and the vocabulary refuses unknown keys.
        """
        flat = keys.reshape(-1).tolist()
        try:
            joined = b"".join(flat)
        except TypeError:
            flat = [key.encode() if isinstance(key, str) else bytes(key) for key in flat]
            joined = b"".join(flat)
        splits = np.fromiter(accumulate(map(len, flat), initial=0), np.int64, len(flat) + 1)
        ids = np.empty(len(flat), np.int64)
        sent = np.frombuffer(joined, np.uint8)
        index = self._data, self._starts, self._slots
        found = key_index.find_strings(*index, sent, splits, self._empty_id, *self._oov, ids)
        if found != key_index.OK and not self._is_hashed:
            count, at = divmod(found, key_index.STRANGER)
            self.strangers.add(count)
            if self._refuses:
                raise _stranger(
                    input_name, repr(flat[at].decode(errors="replace")), at, f"{self._starts.size - 1} strings"
                )
        return ids.reshape(keys.shape)

    @property
    def has_keys(self) -> bool:
        """Whether the vocabulary has a list of its keys; one that only hashes keys to OOV buckets has none."""
        return not self._is_hashed

    def keys_of(self, ids: Array) -> Array:
        """Returns the keys (bytes) of ids, of the same shape; None for an id without a key."""
        return _keys_of(ids, self.key_of)

    def _key(self, line: int) -> bytes:
        length = key_index.line_length(self._data, self._starts, line)
        return self._data[self._starts[line] :][:length].tobytes()

    @property
    def index(self) -> KeyIndex:
        """The arrays of the vocabulary, for the native core; their memory is valid while the returned object lives."""
        empty_id = None if self._empty_id == key_index.NO_EMPTY_KEY else self._empty_id
        return KeyIndex(self._data, self._starts, self._slots, *self._oov, empty_id, self._refuses, self._is_hashed)

    def key_of(self, row: int) -> bytes | None:
        """Returns the string key that stands for a row; None for a row without a key, such as an OOV row."""
        line = row - self._oov[0]
        return self._key(line) if 0 <= line < self._starts.size - 1 else None

    @property
    def example_key(self) -> bytes:
        """A string that the vocabulary maps to a row, for warm-up and example requests."""
        return b"key" if self._is_hashed else self._key(0)


class IntegerVocabulary:
    """A vocabulary of integer keys, which maps them to row ids. Concurrency: any thread.

    keys: [N] int64, in the order of the file. slots: the index over them.
    """

    __slots__ = ("_keys", "_slots", "_oov", "_refuses", "_is_hashed", "strangers")
    key_dtype: ClassVar[KeyDtype] = "int64"

    def __init__(self, entry: VocabularyEntry, keys: Array, slots: Any) -> None:
        self._keys, self._slots = keys, slots
        self._is_hashed = not entry.file
        self._oov, self._refuses = _oov(entry), _refuses_strangers(entry)
        self.strangers = Strangers()

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps int64 or int32 keys to int64 row ids of the same shape.

        An unknown key gets the row of its OOV bucket, or the OOV row, or -1 if it is to be dropped.

        Raises:
          IdOutOfRange: a key is unknown, and the vocabulary refuses unknown keys.
        """
        sent = np.ascontiguousarray(keys, np.int64).reshape(-1)
        ids = np.empty(sent.shape, np.int64)
        found = key_index.find_integers(self._keys, self._slots, sent, *self._oov, ids)
        if found != key_index.OK and not self._is_hashed:
            count, at = divmod(found, key_index.STRANGER)
            self.strangers.add(count)
            if self._refuses:
                raise _stranger(input_name, str(sent[at]), at, f"{self._keys.size} integers")
        return ids.reshape(keys.shape)

    @property
    def has_keys(self) -> bool:
        """Whether the integer vocabulary has a list of its keys; one that only hashes keys has none."""
        return not self._is_hashed

    def keys_of(self, ids: Array) -> Array:
        """Returns the keys (int) of ids, of the same shape; None for an id without a key."""
        return _keys_of(ids, self.key_of)

    @property
    def index(self) -> KeyIndex:
        """The arrays of this vocabulary by which the native core finds the row of an integer key."""
        return KeyIndex(_NO_BYTES, self._keys, self._slots, *self._oov, None, self._refuses, self._is_hashed)

    def key_of(self, row: int) -> int | None:
        """Returns the integer key that stands for a row; None for a row without a key."""
        line = row - self._oov[0]
        return int(self._keys[line]) if 0 <= line < self._keys.size else None

    @property
    def example_key(self) -> int:
        """An integer that the vocabulary maps to a row, for warm-up and example requests."""
        return 0 if self._is_hashed else int(self._keys[0])


OpenedVocabulary = StringVocabulary | IntegerVocabulary


def _keys_of(ids: Array, key_of: Callable[[int], bytes | int | None]) -> Array:
    keys = np.empty(ids.size, object)
    for place, row in enumerate(ids.reshape(-1).tolist()):
        keys[place] = key_of(row)
    return keys.reshape(ids.shape)


def counted_apart(vocabulary: OpenedVocabulary) -> OpenedVocabulary:
    """Returns a copy of a vocabulary that shares its index, but counts unknown keys separately."""
    view = copy(vocabulary)
    view.strangers = Strangers()
    return view


def open_vocabularies(
    artifact: Path, manifest: Manifest, guarded: GuardedFiles | None = None
) -> dict[str, OpenedVocabulary]:
    """Maps the vocabulary files of an artifact and indexes their keys; raises ArtifactError naming the file.

    Args:
      guarded: maps the files; callers check its mark after they read them.
    """
    guarded = guarded or GuardedFiles()
    return {
        name: _open(artifact / entry.file, entry, guarded) if entry.file else _hashed(entry)
        for name, entry in manifest.vocabularies.items()
    }


def _hashed(entry: VocabularyEntry) -> OpenedVocabulary:
    # The index of a hashed vocabulary is empty, because every key is mapped to an OOV bucket by its hash.
    index = key_index.new_index(0)
    if entry.key_dtype == "int64":
        return IntegerVocabulary(entry, np.empty(0, np.int64), index)
    return StringVocabulary(entry, np.empty(0, np.uint8), np.zeros(1, np.int64), index)


def _open(path: Path, entry: VocabularyEntry, guarded: GuardedFiles) -> OpenedVocabulary:
    data = _map(path, guarded)
    size = key_index.count_lines(data)
    if size == 0 or size != entry.size:
        raise ArtifactError(f"vocabulary {path} has {size} lines, its manifest says {entry.size}")
    starts = np.empty(size + 1, np.int64)
    key_index.find_lines(data, starts)
    slots = key_index.new_index(size)
    if entry.key_dtype == "string":
        vocabulary: OpenedVocabulary = StringVocabulary(entry, data, starts, slots)
        twice = key_index.index_strings(data, starts, slots)
    else:
        keys = np.empty(size, np.int64)
        bad = key_index.parse_integers(data, starts, keys)
        if bad != key_index.OK:
            raise ArtifactError(f"vocabulary {path}: line {bad + 1} is {_line(data, starts, bad)}, expected an int64")
        vocabulary = IntegerVocabulary(entry, keys, slots)
        twice = key_index.index_integers(keys, slots)
    if twice != key_index.OK:
        raise ArtifactError(f"vocabulary {path} holds {_line(data, starts, twice)} twice")
    return vocabulary


def _map(path: Path, guarded: GuardedFiles) -> Array:
    # The vocabulary file is mapped and not read, so that all server processes of a machine share its memory pages.
    try:
        if path.stat().st_size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(guarded.map(path), np.uint8)
    except (OSError, ValueError) as error:  # stat() and open() raise ValueError for a name with a NUL
        raise ArtifactError(f"cannot read vocabulary {str(path)!r}: {error}") from error


def _line(data: Array, starts: Array, line: int) -> str:
    length = key_index.line_length(data, starts, line)
    return repr(data[starts[line] :][: min(length, 100)].tobytes().decode(errors="replace"))


def _oov(entry: VocabularyEntry) -> tuple[int, int, int, int]:
    oov_id = _NO_ROW if entry.oov_id is None else entry.oov_id
    return entry.first_id, entry.first_bucket, oov_id, entry.num_oov_buckets


def _refuses_strangers(entry: VocabularyEntry) -> bool:
    return entry.on_oov == "error" and entry.oov_id is None and not entry.num_oov_buckets


def _stranger(input_name: str, key: str, position: int, keys: str) -> IdOutOfRange:
    return IdOutOfRange(f'input "{input_name}": {key} at position {position} is not in its vocabulary of {keys}.')
