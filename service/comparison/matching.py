"""Finds, for a row of a table, the same row in another version: the row of the same key, or of the same id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from service.artifact.row_labels import NO_LABELS, RowLabels
from service.types import Array

NO_ROW = -1


class KeyedRows(Protocol):
    """A vocabulary: the keys of the rows of a table. Concurrency: any thread.

    has_keys: False if all keys are hashed. lines: the rows of the keys in the vocabulary's file.
    """

    @property
    def key_dtype(self) -> Literal["string", "int64"]: ...

    @property
    def has_keys(self) -> bool: ...

    @property
    def lines(self) -> range: ...

    def keys_at(self, ids: Array) -> Array:
        """Returns the keys of [N] row ids in `lines`: int64, or an object array of bytes."""
        ...

    def rows_of(self, keys: Array) -> Array:
        """Returns the [N] int64 row ids in `lines` of [N] keys; NO_ROW for a key that is not in the file."""
        ...

    def key_of(self, row: int) -> bytes | int | None:
        """Returns the key of a row id; None for a row without a key."""
        ...


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
        return np.where(old_ids < self.new.stop, old_ids, NO_ROW)

    def old_ids(self, new_ids: Array) -> Array:
        return np.where(new_ids < self.old.stop, new_ids, NO_ROW)

    def name(self, id: int, *, is_new: bool) -> str:
        """Returns a row's id as text, with its label: rows that are paired by ids have no keys in common."""
        (label,) = self.labels[is_new].of([id])
        return str(id) if label is None else f"{id} {label}"


class ByKey:
    """The Matching (pairs of rows) of tables whose vocabularies have keys of one type: equal keys make a pair."""

    def __init__(self, old: KeyedRows, new: KeyedRows) -> None:
        self._old, self._new = old, new
        self.old, self.new = old.lines, new.lines

    def new_ids(self, old_ids: Array) -> Array:
        return self._new.rows_of(self._old.keys_at(old_ids))

    def old_ids(self, new_ids: Array) -> Array:
        return self._old.rows_of(self._new.keys_at(new_ids))

    def name(self, id: int, *, is_new: bool) -> str:
        key = (self._new if is_new else self._old).key_of(id)
        return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def can_match(old: KeyedRows, new: KeyedRows) -> bool:
    """Says whether two vocabularies have keys of one type; hashed vocabularies have no keys."""
    return old.key_dtype == new.key_dtype and old.has_keys and new.has_keys
