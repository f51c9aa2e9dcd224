"""Finds the table rows that an upsert changes, by its ids or by its keys of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.artifact.delta_checks import check_rows
from service.artifact.delta_file import DeltaFault
from service.engine.deltas import Upsert
from service.errors import IdOutOfRange, IdsTooMany, InputMismatch, TableNotFound
from service.tables.vocabulary import IntegerVocabulary, StringVocabulary, counted_apart
from service.types import Array, TableInfo, Vocabulary


def resolved_rows(
    tables: Mapping[str, TableInfo],
    vocabularies: Mapping[str, Mapping[str, Vocabulary]],
    table: str,
    upsert: Upsert,
    max_rows: int,
) -> Array:
    """Checks an upsert, and returns the [N] int64 ids of the rows that it changes.

    Raises:
      TableNotFound, InputMismatch, IdOutOfRange, IdsTooMany: the upsert does not fit.
    """
    info = tables.get(table)
    if info is None:
        known = ", ".join(sorted(tables)) or "none"
        raise TableNotFound(f'There is no table "{table}". Tables: {known}.')
    named = upsert.ids if upsert.ids is not None else upsert.keys
    assert named is not None  # the parser of upserts requires ids or keys
    if len(named) != len(upsert.rows) or not len(named):
        raise InputMismatch(f'table "{table}": {len(named)} ids or keys for {len(upsert.rows)} rows.')
    if len(named) > max_rows:
        raise IdsTooMany(f'table "{table}": {len(named)} rows, the limit is {max_rows} per request.')
    if upsert.ids is not None:
        ids = upsert.ids
    else:
        ids = _rows_of_keys(table, vocabularies.get(table, {}), upsert.feature, named)
    try:
        check_rows(info, ids, upsert.rows)
    except DeltaFault as fault:
        error = IdOutOfRange if fault.reason == "ids" else InputMismatch
        raise error(f"{fault}.") from fault
    return ids


def _rows_of_keys(table: str, vocabularies: Mapping[str, Vocabulary], feature: str, keys: Array) -> Array:
    if feature:
        if feature not in vocabularies:
            known = ", ".join(sorted(vocabularies)) or "none"
            raise InputMismatch(f'table "{table}" has no feature "{feature}" with keys. Features: {known}.')
        chosen = vocabularies[feature]
    elif len({id(vocabulary) for vocabulary in vocabularies.values()}) == 1:
        chosen = next(iter(vocabularies.values()))
    elif vocabularies:
        raise InputMismatch(
            f'table "{table}" has several vocabularies: name one by "feature", of {", ".join(sorted(vocabularies))}.'
        )
    else:
        raise InputMismatch(f'table "{table}" has no vocabulary: send ids.')
    if (chosen.key_dtype == "string") != (keys.dtype == object):
        raise InputMismatch(f'table "{table}": its keys are {chosen.key_dtype}.')
    # Unknown keys are refused: the vocabulary maps them to an OOV bucket or a default row, which an upsert must not
    # change.
    assert isinstance(chosen, (StringVocabulary, IntegerVocabulary))
    known_to = counted_apart(chosen)
    ids = known_to.ids_of(keys, "keys")
    if known_to.strangers.total:
        place = next(i for i in range(len(keys)) if _is_stranger(chosen, keys[i : i + 1]))
        key = keys[place]
        shown = key.decode(errors="replace") if isinstance(key, bytes) else key
        raise IdOutOfRange(f'table "{table}": key {shown!r} at position {place} is not in its vocabulary.')
    return np.ascontiguousarray(ids, np.int64)


def _is_stranger(vocabulary: StringVocabulary | IntegerVocabulary, key: Array) -> bool:
    alone = counted_apart(vocabulary)
    try:
        alone.ids_of(key, "keys")
    except IdOutOfRange:
        return True
    return alone.strangers.total > 0
