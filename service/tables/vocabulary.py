"""Opens vocabularies, which map the keys that clients send to rows of a table, and finds rows by keys and keys by rows.

An index is an int32 array of slots, a power of two in number: native/src/tables/key_index.rs fills it. The index holds
no keys: strings are in the lines of the mapped file, integers in one array. So an index takes some 15 bytes a key
beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from service.artifact.manifest import KeyDtype, Manifest, VocabularyEntry
from service.artifact.row_labels import RowLabels
from service.errors import ArtifactError, IdOutOfRange, InputMismatch
from service.native_tables import core_tables
from service.tables.guarded_files import GuardedFiles
from service.types import Array

# The row number that a vocabulary's index writes for an unknown key, if the vocabulary has no row for unknown keys.
_NO_ROW = -1
_NO_BYTES = np.empty(0, np.uint8)
# What the core's functions take for "the empty string is a key like any other", what they return if there is no fault,
# and the factor of the number of unknown keys in what a search of keys returns; it adds the first one's position.
_NO_EMPTY_KEY = -1
_OK = -1
_UNKNOWN_KEY = 1 << 32
# Arguments of a search for keys that a vocabulary has: without hash buckets and without a row for unknown keys.
_ONLY_KEYS = (0, _NO_ROW, 0)


class KeyIndex(NamedTuple):
    """The arrays and numbers of a vocabulary with which the native core can look up keys.

    data: for strings the file's bytes, else [0]. keys: [N+1] int64 offsets of the lines, or the [N] int64 keys.
    slots: the index over the keys. first_id: row of the first key. first_bucket,
      num_oov_buckets: rows of the hash buckets, 0 for none. oov_id: row for unknown keys, -1 for none.
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


class _Vocabulary:
    """The part of both kinds of vocabulary: a row for each of `size` keys, and rows for unknown keys."""

    __slots__ = ("_oov", "_refuses", "_is_hashed", "_size")

    def __init__(self, entry: VocabularyEntry, size: int) -> None:
        self._is_hashed, self._size = not entry.file, size
        oov_id = _NO_ROW if entry.oov_id is None else entry.oov_id
        self._oov = entry.first_id, entry.first_bucket, oov_id, entry.num_oov_buckets
        self._refuses = entry.on_oov == "error" and entry.oov_id is None and not entry.num_oov_buckets

    @property
    def has_keys(self) -> bool:
        return not self._is_hashed

    @property
    def lines(self) -> range:
        return range(self._oov[0], self._oov[0] + self._size)

    def key_of(self, row: int) -> Any:
        return self._key(row - self._oov[0]) if row in self.lines else None

    def keys_of(self, ids: Array) -> Array:
        """Returns the keys (bytes or int) of ids, of the same shape; None for an id without a key."""
        return np.array([self.key_of(row) for row in ids.reshape(-1).tolist()], object).reshape(ids.shape)

    def _key(self, line: int) -> Any:
        raise NotImplementedError


class StringVocabulary(_Vocabulary):
    """A vocabulary of strings, which maps them to row ids. Concurrency: any thread.

    data: the file's bytes, mapped. starts: [N+1] int64 offsets of its lines. slots: the index over the lines.
    """

    __slots__ = ("_data", "_starts", "_slots", "_empty_id")
    key_dtype: ClassVar[KeyDtype] = "string"

    def __init__(self, entry: VocabularyEntry, data: Array, starts: Array, slots: Any) -> None:
        self._data, self._starts, self._slots = data, starts, slots
        self._empty_id = _NO_EMPTY_KEY if entry.empty_key_id is None else entry.empty_key_id
        super().__init__(entry, starts.size - 1)

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps an object array of strings (bytes or str) to int64 row ids of the same shape.

        An unknown key gets the row of its OOV bucket, or the OOV row, or -1 if it is to be dropped.

        Raises:
          IdOutOfRange: a key is unknown, and the vocabulary refuses unknown keys.
        """
        ids, unknown = self._found(keys, self._empty_id, self._oov)
        if unknown is not None and self._refuses and not self._is_hashed:
            key = keys.reshape(-1)[unknown]
            shown = repr(key.decode(errors="replace") if isinstance(key, bytes) else key)
            raise _unknown(input_name, shown, unknown, f"{self._size} strings")
        return ids

    def rows_of(self, keys: Array) -> Array:
        return self._found(keys, _NO_EMPTY_KEY, (self._oov[0], *_ONLY_KEYS))[0]

    def known_ids(self, keys: Array) -> Array:
        """Returns the int64 row ids of strings, of the same shape; -1 for an unknown one, whatever lookups read."""
        return self._found(keys, self._empty_id, (self._oov[0], *_ONLY_KEYS))[0]

    def _found(self, keys: Array, empty_id: int, oov: tuple[int, int, int, int]) -> tuple[Array, int | None]:
        flat = keys.reshape(-1).tolist()
        try:
            joined = b"".join(flat)
        except TypeError:
            flat = [key.encode() if isinstance(key, str) else bytes(key) for key in flat]
            joined = b"".join(flat)
        splits = np.fromiter(accumulate(map(len, flat), initial=0), np.int64, len(flat) + 1)
        ids = np.empty(len(flat), np.int64)
        sent = np.frombuffer(joined, np.uint8)
        found = core_tables().find_strings(self._data, self._starts, self._slots, sent, splits, empty_id, *oov, ids)
        return ids.reshape(keys.shape), None if found == _OK else found % _UNKNOWN_KEY

    def keys_at(self, ids: Array) -> Array:
        data, starts = self._data.data, self._starts
        lines = (ids - self._oov[0]).tolist()
        keys = [bytes(data[starts[line] : starts[line + 1] - 1]).removesuffix(b"\r") for line in lines]
        return np.array([*keys, None], object)[:-1]

    def _key(self, line: int) -> bytes:
        length = core_tables().line_length(self._data, self._starts, line)
        return self._data[self._starts[line] :][:length].tobytes()

    @property
    def index(self) -> KeyIndex:
        empty_id = None if self._empty_id == _NO_EMPTY_KEY else self._empty_id
        return KeyIndex(self._data, self._starts, self._slots, *self._oov, empty_id, self._refuses, self._is_hashed)

    @property
    def labels(self) -> RowLabels:
        return RowLabels(self._data, self._starts, self._oov[0])

    @property
    def example_key(self) -> bytes:
        return b"key" if self._is_hashed else self._key(0)


class IntegerVocabulary(_Vocabulary):
    """A vocabulary of integer keys, which maps them to row ids. Concurrency: any thread.

    keys: [N] int64, in the order of the file. slots: the index over them.
    """

    __slots__ = ("_keys", "_slots")
    key_dtype: ClassVar[KeyDtype] = "int64"

    def __init__(self, entry: VocabularyEntry, keys: Array, slots: Any) -> None:
        self._keys, self._slots = keys, slots
        super().__init__(entry, keys.size)

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps int64 or int32 keys to int64 row ids of the same shape."""
        ids, unknown = self._found(keys, self._oov)
        if unknown is not None and self._refuses and not self._is_hashed:
            raise _unknown(input_name, str(keys.reshape(-1)[unknown]), unknown, f"{self._size} integers")
        return ids

    def rows_of(self, keys: Array) -> Array:
        return self._found(keys, (self._oov[0], *_ONLY_KEYS))[0]

    def known_ids(self, keys: Array) -> Array:
        return self.rows_of(keys)

    def _found(self, keys: Array, oov: tuple[int, int, int, int]) -> tuple[Array, int | None]:
        sent = np.ascontiguousarray(keys, np.int64).reshape(-1)
        ids = np.empty(sent.shape, np.int64)
        found = core_tables().find_integers(self._keys, self._slots, sent, *oov, ids)
        return ids.reshape(keys.shape), None if found == _OK else found % _UNKNOWN_KEY

    def keys_at(self, ids: Array) -> Array:
        return np.ascontiguousarray(self._keys[ids - self._oov[0]])

    @property
    def index(self) -> KeyIndex:
        return KeyIndex(_NO_BYTES, self._keys, self._slots, *self._oov, None, self._refuses, self._is_hashed)

    def _key(self, line: int) -> int:
        return int(self._keys[line])

    @property
    def example_key(self) -> int:
        return 0 if self._is_hashed else int(self._keys[0])


OpenedVocabulary = StringVocabulary | IntegerVocabulary


def open_vocabularies(
    artifact: Path, manifest: Manifest, guarded: GuardedFiles | None = None
) -> dict[str, OpenedVocabulary]:
    """Maps the vocabulary files of an artifact and indexes their keys; raises ArtifactError naming the file."""
    guarded = guarded or GuardedFiles()
    return {
        name: _open(artifact / entry.file, entry, guarded) if entry.file else _hashed(entry)
        for name, entry in manifest.vocabularies.items()
    }


def _hashed(entry: VocabularyEntry) -> OpenedVocabulary:
    # The index of a hashed vocabulary is empty, because every key is mapped to an OOV bucket by its hash.
    index = _new_index(0)
    if entry.key_dtype == "int64":
        return IntegerVocabulary(entry, np.empty(0, np.int64), index)
    return StringVocabulary(entry, np.empty(0, np.uint8), np.zeros(1, np.int64), index)


def _open(path: Path, entry: VocabularyEntry, guarded: GuardedFiles) -> OpenedVocabulary:
    data = _map(path, guarded)
    size = core_tables().count_lines(data)
    if size == 0 or size != entry.size:
        raise ArtifactError(f"vocabulary {path} has {size} lines, its manifest says {entry.size}")
    starts = np.empty(size + 1, np.int64)
    core_tables().find_lines(data, starts)
    slots = _new_index(size)
    if entry.key_dtype == "string":
        vocabulary: OpenedVocabulary = StringVocabulary(entry, data, starts, slots)
        twice = core_tables().index_strings(data, starts, slots)
    else:
        keys = np.empty(size, np.int64)
        bad = core_tables().parse_integers(data, starts, keys)
        if bad != _OK:
            raise ArtifactError(f"vocabulary {path}: line {bad + 1} is {_line(data, starts, bad)}, expected an int64")
        vocabulary = IntegerVocabulary(entry, keys, slots)
        twice = core_tables().index_integers(keys, slots)
    if twice != _OK:
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


def _new_index(size: int) -> Array:
    # Between a third and two thirds of the hash table's slots stay empty, so that finding a key takes one or two slots.
    return np.full(1 << (size * 3 // 2).bit_length(), _NO_ROW, np.int32)


def _line(data: Array, starts: Array, line: int) -> str:
    length = core_tables().line_length(data, starts, line)
    return repr(data[starts[line] :][: min(length, 100)].tobytes().decode(errors="replace"))


def _unknown(input_name: str, key: str, position: int, keys: str) -> IdOutOfRange:
    return IdOutOfRange(f'input "{input_name}": {key} at position {position} is not in its vocabulary of {keys}.')


class TableKeys:
    """The vocabularies of one table, by feature, as versions.neighbors declares. Concurrency: any thread."""

    def __init__(self, table: str, vocabularies: Mapping[str, OpenedVocabulary]) -> None:
        self._table = table
        self._vocabularies = vocabularies

    def ids_of(self, keys: Array, feature: str) -> Array:
        """Returns [N] int64 ids of [N] keys; an unknown key is an error, whatever a lookup reads for it."""
        chosen = self._named(feature) or self._only()
        if chosen is None:
            if self._vocabularies:
                features = ", ".join(sorted(self._vocabularies))
                raise InputMismatch(
                    f'table "{self._table}" has several vocabularies: name one by "feature", of {features}.'
                )
            raise InputMismatch(f'table "{self._table}" has no vocabulary: send ids.')
        if (chosen.key_dtype == "string") != (keys.dtype == object):
            raise InputMismatch(f'table "{self._table}": its keys are {chosen.key_dtype}.')
        if not chosen.has_keys:
            return chosen.ids_of(keys, "keys")
        # For an unknown key, a lookup may read an OOV bucket or a default row. Neither is the key's own row, so
        # ids_of() refuses every unknown key.
        ids = chosen.known_ids(keys)
        for place in np.flatnonzero(ids < 0)[:1].tolist():
            key = keys[place]
            shown = key.decode(errors="replace") if isinstance(key, bytes) else key
            near = chosen.labels.near(shown) if isinstance(chosen, StringVocabulary) else ""
            raise IdOutOfRange(
                f'table "{self._table}": key {shown!r} at position {place} is not in its vocabulary.{near}'
            )
        return ids

    def keys_of(self, ids: Array, feature: str) -> Array | None:
        """Returns the keys (bytes or int) of ids of any shape; None for an id without a key.

        Returns None if no feature is named and the table has not exactly one vocabulary with keys.
        """
        chosen = self._named(feature) or self._only()
        return None if chosen is None or not chosen.has_keys else chosen.keys_of(ids)

    @property
    def labels(self) -> RowLabels | None:
        chosen = self._only()
        return chosen.labels if isinstance(chosen, StringVocabulary) and chosen.has_keys else None

    def _named(self, feature: str) -> OpenedVocabulary | None:
        if not feature:
            return None
        if feature not in self._vocabularies:
            known = ", ".join(sorted(self._vocabularies)) or "none"
            raise InputMismatch(f'table "{self._table}" has no feature "{feature}" with keys. Features: {known}.')
        return self._vocabularies[feature]

    def _only(self) -> OpenedVocabulary | None:
        distinct = {id(vocabulary): vocabulary for vocabulary in self._vocabularies.values()}
        return next(iter(distinct.values())) if len(distinct) == 1 else None
