"""Finds, for a row of a table, the same row in another version: the row of the same key, or of the same id."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from service.artifact.row_labels import NO_LABELS, RowLabels
from service.tables import key_index
from service.tables.vocabulary import KeyIndex, OpenedVocabulary
from service.types import Array

NO_ROW = -1
# Arguments of a search for keys in a vocabulary: without hash buckets and without a row for unknown keys, an unknown
# key gets NO_ROW.
_ONLY_KEYS = (0, NO_ROW, 0)


class Matching(Protocol):
    """Pairs the rows of a table's old version with the same rows of its new version. Concurrency: any thread.

    old, new: the ids of the rows that can be paired, in each version.
    """

    @property
    def old(self) -> range: ...

    @property
    def new(self) -> range: ...

    def new_ids(self, old_ids: Array) -> Array:
        """Returns the [n] int64 ids in the new version of [n] ids in `old`; NO_ROW for a row that is gone."""
        ...

    def old_ids(self, new_ids: Array) -> Array:
        """Returns the [n] int64 ids in the old version of [n] ids in `new`; NO_ROW for a row that is added."""
        ...

    def name(self, id: int, *, is_new: bool) -> str:
        """Returns the key of a row as text, or its id and label if rows are paired by ids."""
        ...


@dataclass(frozen=True, slots=True)
class ById:
    """The Matching (pairs of rows) of tables without a common vocabulary: equal ids make a pair.

    labels: what people call the rows of the old version, and of the new one.
    """

    old: range
    new: range
    labels: tuple[RowLabels, RowLabels] = (NO_LABELS, NO_LABELS)

    def new_ids(self, old_ids: Array) -> Array:
        """Returns the given old ids, with NO_ROW in place of each id that the new table lacks."""
        return np.where(old_ids < self.new.stop, old_ids, NO_ROW)

    def old_ids(self, new_ids: Array) -> Array:
        """Returns the given new ids, with NO_ROW in place of each id that the old table lacks."""
        return np.where(new_ids < self.old.stop, new_ids, NO_ROW)

    def name(self, id: int, *, is_new: bool) -> str:
        """Returns a row's id as text, with its label: rows that are paired by ids have no keys in common."""
        (label,) = self.labels[is_new].of([id])
        return str(id) if label is None else f"{id} {label}"


class ByKey:
    """The Matching (pairs of rows) of tables whose vocabularies have keys of one type: equal keys make a pair."""

    def __init__(self, old: OpenedVocabulary, new: OpenedVocabulary) -> None:
        self._old, self._new = old.index, new.index
        self._has_strings = old.key_dtype == "string"
        self.old, self.new = _rows(self._old, self._has_strings), _rows(self._new, self._has_strings)

    def new_ids(self, old_ids: Array) -> Array:
        """Returns the ids that rows with the keys of the given old rows have in the new version."""
        return self._translated(old_ids, self._old, self._new)

    def old_ids(self, new_ids: Array) -> Array:
        """Returns the ids that rows with the keys of the given new rows have in the old version."""
        return self._translated(new_ids, self._new, self._old)

    def name(self, id: int, *, is_new: bool) -> str:
        """Returns the key of a row of one version (the new one if is_new) in that version's vocabulary, as text."""
        index = self._new if is_new else self._old
        line = id - index.first_id
        if not self._has_strings:
            return str(index.keys[line])
        return _line(index.data.data, index.keys, line).decode(errors="backslashreplace")

    def _translated(self, ids: Array, source: KeyIndex, target: KeyIndex) -> Array:
        lines, found = ids - source.first_id, np.empty(len(ids), np.int64)
        if not self._has_strings:
            keys = np.ascontiguousarray(source.keys[lines])
            key_index.find_integers(target.keys, target.slots, keys, target.first_id, *_ONLY_KEYS, found)
            return found
        data = source.data.data
        strings = [_line(data, source.keys, line) for line in lines.tolist()]
        splits = np.fromiter(accumulate(map(len, strings), initial=0), np.int64, len(strings) + 1)
        sent = np.frombuffer(b"".join(strings), np.uint8)
        where = target.data, target.keys, target.slots
        key_index.find_strings(*where, sent, splits, key_index.NO_EMPTY_KEY, target.first_id, *_ONLY_KEYS, found)
        return found


def can_match(old: OpenedVocabulary, new: OpenedVocabulary) -> bool:
    """Says whether two vocabularies have keys of one type; hashed vocabularies have no keys."""
    return old.key_dtype == new.key_dtype and not old.index.is_hashed and not new.index.is_hashed


def _rows(index: KeyIndex, has_strings: bool) -> range:
    return range(index.first_id, index.first_id + len(index.keys) - has_strings)


def _line(data: memoryview, starts: Array, line: int) -> bytes:
    return bytes(data[starts[line] : starts[line + 1] - 1]).removesuffix(b"\r")
