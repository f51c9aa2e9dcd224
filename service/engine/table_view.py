"""Shows rows of a table to people: pages of row ids with their keys and norms, and one row with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from service.engine.deltas import RowOrigin
from service.engine.engine import Engine, ModelDescription
from service.errors import IdOutOfRange, InvalidRequest, TableNotFound
from service.types import Array, ModelRef, TableInfo, Vocabulary

# Maximum number of rows in one call of read_page(), which refuses a larger count.
MAX_PAGE_ROWS = 1000

Key = bytes | int


class Page(NamedTuple):
    """Consecutive rows of a table.

    total: V of the table. keys: for each row its key or None; empty if the table has no vocabulary. labels: the same of
    what people call the rows. norms: [N] float32.
    """

    version: int
    start: int
    total: int
    keys: list[Key | None]
    labels: list[str | None]
    norms: Array


class Row(NamedTuple):
    """One row of a table as the console shows it: its keys, its numbers and its origin.

    keys: feature -> the row's key in the feature's vocabulary, or None. label: what people call the row. is_known: the
    asked key is in the vocabulary, and did not lead to a row for unknown keys. values: [D] float32. origin: the delta
    that wrote the row last.
    """

    version: int
    id: int
    keys: Mapping[str, Key | None]
    label: str | None
    is_known: bool
    values: Array
    norm: float
    origin: RowOrigin | None


def read_page(engine: Engine, ref: ModelRef, table: str, start: int, count: int) -> Page:
    """Reads consecutive rows of a table; raises InvalidRequest for a wrong range, else as Engine.table_rows does."""
    if start < 0 or not 0 < count <= MAX_PAGE_ROWS:
        raise InvalidRequest(f"start must be 0 or more, and count from 1 to {MAX_PAGE_ROWS}.")
    ref, info, vocabularies = _found(engine, ref, table)
    ids = np.arange(min(start, info.vocabulary_size), min(start + count, info.vocabulary_size), dtype=np.int64)
    found = engine.table_rows(ref, table, ids)
    vocabulary = next(iter(vocabularies.values()), None)
    keys = [] if vocabulary is None else [vocabulary.key_of(int(one)) for one in ids]
    labels = engine.labels(ref, table, ids)
    return Page(found.version, start, info.vocabulary_size, keys, labels, _norms(found.rows).astype(np.float32))


def read_row(engine: Engine, ref: ModelRef, table: str, row: int | None, key: str, feature: str = "") -> Row:
    """Reads one row by its id, or by a key of a feature's vocabulary; raises as Engine.table_rows does.

    Args:
      row: the id; None: the key counts.
      feature: the feature whose vocabulary has the key; "": the table's first feature with a vocabulary.

    Raises:
      InvalidRequest: the table has no such vocabulary, or the key is no integer.
      IdOutOfRange: the key is unknown, and the vocabulary has no row for unknown keys.
    """
    ref, info, vocabularies = _found(engine, ref, table)
    is_known = True
    if row is None:
        name = feature or next(iter(vocabularies), "")
        if name not in vocabularies:
            known = ", ".join(vocabularies) or "none"
            raise InvalidRequest(f'Table "{table}" has no vocabulary of feature "{name}". Features with one: {known}.')
        row, is_known = _row_of(vocabularies[name], key)
    ids = np.array([row], np.int64)
    found = engine.table_rows(ref, table, ids)
    keys = {name: one.key_of(row) for name, one in vocabularies.items()}
    origin = engine.row_origin(ref, table, row)
    label = next(iter(engine.labels(ref, table, ids)), None)
    return Row(found.version, row, keys, label, is_known, found.rows[0], float(_norms(found.rows)[0]), origin)


class Names(NamedTuple):
    """The names of some rows: the keys of each feature with a vocabulary, and the labels; empty without them."""

    keys: Mapping[str, list[Key | None]]
    labels: list[str | None]


def read_names(engine: Engine, ref: ModelRef, table: str, ids: Array) -> Names:
    """Reads the keys and labels of [N] int64 row ids; raises TableNotFound."""
    ref, _, vocabularies = _found(engine, ref, table)
    rows = ids.tolist()
    keys = {feature: [vocabulary.key_of(row) for row in rows] for feature, vocabulary in vocabularies.items()}
    return Names(keys, engine.labels(ref, table, ids))


def _found(engine: Engine, ref: ModelRef, table: str) -> tuple[ModelRef, TableInfo, Mapping[str, Vocabulary]]:
    description = engine.describe(ref)
    # All further reads name the version that describe() found, so that all of them use one version, even if a newer
    # version becomes AVAILABLE in between.
    ref = ModelRef(ref.name, description.version)
    infos = {info.name: info for info in engine.tables(ref)}
    if table not in infos:
        raise TableNotFound(f'Model "{ref.name}" has no table "{table}". Tables: {", ".join(infos) or "none"}.')
    return ref, infos[table], vocabularies_of(description, infos[table])


def vocabularies_of(description: ModelDescription, info: TableInfo) -> Mapping[str, Vocabulary]:
    """Returns feature -> vocabulary, for the features that look up rows of the table by keys."""
    found: dict[str, Vocabulary] = {}
    for feature in info.features:
        for spec in description.signatures.values():
            names = spec.ragged.get(feature)
            tensor = spec.inputs.get(names.values if names else feature)
            if tensor is not None and tensor.vocabulary is not None:
                found[feature] = tensor.vocabulary
                break
    return found


def _row_of(vocabulary: Vocabulary, key: str) -> tuple[int, bool]:
    if vocabulary.key_dtype == "string":
        asked: Key = key.encode("utf-8", "replace")
        sent = np.array([asked], object)
    else:
        try:
            asked = int(key)
            sent = np.array([asked], np.int64)
        except (ValueError, OverflowError):
            raise InvalidRequest(f"The vocabulary has integer keys, got {key!r}.") from None
    row = int(vocabulary.ids_of(sent, "key")[0])
    if row < 0:
        raise IdOutOfRange(f"key {key!r} is not in the vocabulary, and lookups drop it.")
    return row, vocabulary.key_of(row) == asked


def _norms(rows: Array) -> Array:
    norms: Array = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
    return norms
