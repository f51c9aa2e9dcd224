"""Checks whether a delta fits its model version; deltas from files, journals and requests follow the same rules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.artifact.delta_file import Delta, DeltaFault
from service.artifact.rounding import LARGEST, rounded
from service.types import Array, TableInfo


def check_delta(delta: Delta, tables: Mapping[str, TableInfo], fingerprint: bytes) -> None:
    """Raises DeltaFault if a delta names another version or an unknown table, or its rows do not fit the table."""
    if delta.fingerprint != fingerprint:
        raise DeltaFault(
            "fingerprint",
            f"it is for the version whose fingerprint begins with {delta.fingerprint[:8].hex()}, "
            f"this one's with {fingerprint[:8].hex()}",
        )
    table = tables.get(delta.table)
    if table is None:
        raise DeltaFault("table", f"no table {delta.table!r}; tables: {', '.join(sorted(tables)) or 'none'}")
    check_rows(table, delta.ids, delta.rows)


def check_rows(table: TableInfo, ids: Array, rows: Array) -> None:
    """Raises DeltaFault if ids or new rows do not fit their table; ids: [N] int64, rows: [N, D] float32."""
    name = table.name
    if rows.shape[1] != table.embedding_dim:
        raise DeltaFault("table", f"table {name!r}: rows of {rows.shape[1]} numbers, it has {table.embedding_dim}")
    outside = (ids < 0) | (ids >= table.vocabulary_size)
    if outside.any():
        place = int(np.argmax(outside))
        size = table.vocabulary_size
        raise DeltaFault(
            "ids",
            f"table {name!r}: id {ids[place]} at position {place} is out of range, it has ids 0 to {size - 1}",
        )
    sorted_ids = np.sort(ids)
    twice = sorted_ids[1:] == sorted_ids[:-1]
    if twice.any():
        raise DeltaFault("ids", f"table {name!r}: id {sorted_ids[int(np.argmax(twice))]} occurs twice")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DeltaFault("values", f"table {name!r}: row {ids[int(np.argmin(finite))]} holds NaN or infinity")
    if table.dtype in LARGEST:
        largest = np.abs(rows).max(axis=1)
        numbers, _ = rounded(largest[:, None], table.dtype)
        is_lost = numbers[:, 0] == rounded(np.array([[np.inf]], np.float32), table.dtype)[0][0, 0]
        if is_lost.any():
            place = int(np.argmax(is_lost))
            raise DeltaFault(
                "values",
                f"table {name!r}: row {ids[place]} holds {largest[place]:.6g}, {table.dtype} ends at "
                f"{LARGEST[table.dtype]:.6g}",
            )
