"""Tells the native core where the rows of a table lie: in which buffers, or in which cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.remote.row_cache import FRESH_S
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array

ServedTable = MappedTable | RemoteTable
_NO_OCTETS = np.empty(0, np.uint8)


def remote_place(table: RemoteTable) -> dict[str, Any]:
    """Returns the place of a table's rows in a cluster, as native/src/clusters/description.rs reads it."""
    address, layout = table.reader.address, table.reader.layout
    return {
        "address": {
            "nodes": address.nodes,
            "has_tls": address.has_tls,
            "ca_file": address.ca_file,
            "user": address.user,
            "password_file": address.password_file,
            "own_password": address.own_password,
            "timeout_ms": round(address.timeout_s * 1e3),
            "node_timeout_ms": round(address.node_timeout_s * 1e3),
            "hedge_percent": address.hedge_percent,
        },
        "tag": layout.tag,
        "block_rows": layout.block_rows,
        "num_shards": layout.num_shards,
        "row_bytes": layout.row_bytes,
        "default_rows": [(row, octets.tolist()) for row, octets in table.defaults.items()],
        "serves_stale": table.serves_stale,
        "fresh_ms": round(FRESH_S * 1e3),
    }


def octets_of(table: ServedTable) -> tuple[Array, Array]:
    """Returns the bytes of a table's rows and of their scales; none for a table in a cluster."""
    if isinstance(table, RemoteTable):
        return _NO_OCTETS, _NO_OCTETS
    _, rows, scales, _, _ = table.place
    return rows, scales
