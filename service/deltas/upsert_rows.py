"""Finds the table rows that an upsert changes, by its ids or by its keys of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from service.artifact.delta_checks import check_rows
from service.artifact.delta_file import DeltaFault
from service.engine.deltas import Upsert
from service.errors import IdOutOfRange, IdsTooMany, InputMismatch, TableNotFound
from service.tables.table_keys import TableKeys
from service.types import Array, TableInfo


def resolved_rows(
    tables: Mapping[str, TableInfo],
    keys: Mapping[str, TableKeys],
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
    assert named is not None  # the parser of upserts refuses an upsert that has neither ids nor keys
    if len(named) != len(upsert.rows) or not len(named):
        raise InputMismatch(f'table "{table}": {len(named)} ids or keys for {len(upsert.rows)} rows.')
    if len(named) > max_rows:
        raise IdsTooMany(f'table "{table}": {len(named)} rows, the limit is {max_rows} per request.')
    if upsert.ids is not None:
        ids = upsert.ids
    else:
        ids = (keys.get(table) or TableKeys(table, {})).ids_of(named, upsert.feature)
    try:
        check_rows(info, ids, upsert.rows)
    except DeltaFault as fault:
        error = IdOutOfRange if fault.reason == "ids" else InputMismatch
        raise error(f"{fault}.") from fault
    return ids
