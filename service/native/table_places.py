"""Tells the native core where the rows of a table lie: in which buffers, or in which cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.native.clusters import remote_description
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array

ServedTable = MappedTable | RemoteTable
_NO_OCTETS = np.empty(0, np.uint8)


def remote_place(table: RemoteTable) -> dict[str, Any]:
    """Returns the place of a table's rows in a cluster, as native/src/clusters/description.rs reads it."""
    return remote_description(table.layout, table.address, table.default_rows)


def octets_of(table: ServedTable) -> tuple[Array, Array]:
    """Returns the bytes of a table's rows and of their scales; none for a table in a cluster."""
    if isinstance(table, RemoteTable):
        return _NO_OCTETS, _NO_OCTETS
    _, rows, scales, _, _ = table.place
    return rows, scales
