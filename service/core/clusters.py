"""Opens tables in Valkey and Redis clusters in the native core, reads their rows, and counts the core's reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from service.remote.address import StoreAddress
from service.remote.core_clusters import CacheCounts, Found, ReadCounts, RemoteCounts, Subject
from service.remote.layout import TableLayout
from service.types import Array

if TYPE_CHECKING:
    from service import _native

# For how many seconds cached rows are valid after the server last read the changes of their table.
FRESH_S = 2.0


class Clusters:
    """The Valkey and Redis clusters from which the native core reads rows. Concurrency: any thread.

    Args:
      cache_bytes: the most bytes of rows that are cached; 0: none.
    """

    def __init__(self, cache_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self._cache_bytes = cache_bytes
        self.core = _native.Clusters(cache_bytes)

    @property
    def holds_rows(self) -> bool:
        return self._cache_bytes > 0

    def open(
        self, subject: Subject, layout: TableLayout, address: StoreAddress, default_rows: Sequence[int]
    ) -> OpenTable:
        description = json.dumps(remote_description(layout, address, default_rows))
        return OpenTable(self.core.open(*subject, layout.vocabulary_size, description), layout.row_bytes)

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes [N] int64 rows of a table, which changed in its cluster, from the native core's cache; None: all.

        Default rows among them are read again.
        """
        self.core.forget(*subject, None if ids is None else ids.tolist())

    def heard(self, subject: Subject) -> None:
        self.core.heard(*subject)

    def lost(self, subject: Subject) -> tuple[list[int], int, int]:
        """Returns the blocks of a table that lacked a row that was read since the last call, and the table's numbers of
        reads and of failed reads.
        """
        return self.core.lost(*subject)

    def set_in_sync(self, nodes: Sequence[tuple[str, int]], seconds: float) -> None:
        self.core.set_in_sync(list(nodes), seconds)

    def refresh(self) -> None:
        self.core.refresh()

    def fill(self, layout: TableLayout, version: int, ids: Array, seconds: float) -> int:
        """Reads the rows of [N] int64 ids into the cache, in this order, for at most `seconds`.

        Returns the number of these rows that are in the cache then.
        """
        return self.core.fill(layout.tag, version, ids.tolist(), seconds)

    def counts(self) -> RemoteCounts:
        tables, cache = json.loads(self.core.counts())
        found = {}
        for one in tables:
            one["seconds"] = one["nanos"] / 1e9
            subject = one["model"], one["version"], one["table"]
            found[subject] = ReadCounts(*(one[field.name] for field in fields(ReadCounts)))
        return RemoteCounts(found, None if cache is None else CacheCounts(**cache))


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table in a cluster that the native core has opened; implements remote.core_clusters.ClusterTable."""

    core: _native.ClusterTable
    row_bytes: int

    def read(self, ids: Array) -> Found:
        octets, left, why = self.core.read(ids.tolist())
        is_missing = np.zeros(ids.shape[0], bool)
        is_missing[left] = True
        return Found(np.frombuffer(octets, np.uint8).reshape(-1, self.row_bytes).copy(), is_missing, why)

    def default_row(self, row: int, uses: int) -> Array | None:
        """Returns the [row_bytes] uint8 of a default row, and counts that `uses` ids read it; None if the table has no
        such default row.
        """
        octets = self.core.default_row(row, uses)
        return None if octets is None else np.frombuffer(octets, np.uint8)


def remote_description(layout: TableLayout, address: StoreAddress, default_rows: Sequence[int]) -> dict[str, Any]:
    """Describes a table in a cluster for the native core: the JSON that native/src/clusters/description.rs reads."""
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
        "default_rows": list(default_rows),
        "serves_stale": address.on_unavailable == "stale",
        "fresh_ms": round(FRESH_S * 1e3),
    }
