"""Opens tables in Valkey and Redis clusters in the native core, reads their rows, and counts the core's reads."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from service.types import Array

if TYPE_CHECKING:
    from service import _native


@dataclass(slots=True)
class ReadCounts:
    """Counts of reads from one remote table.

    rows, bytes: rows that were read, and their bytes. retries: rounds of requests beyond a read's first one.
    errors: reads that could not read all rows. default_rows: rows that were replaced by a default row. stale_rows: rows
    that were replaced by a cached row. hedges: reads of a node that were also sent to a second node; hedge_wins: hedged
    reads that the second node answered first. seconds: total time of all reads, waiting included. cache_hits,
    cache_misses: rows that the native core's cache had and lacked.
    """

    reads: int = 0
    rows: int = 0
    bytes: int = 0
    retries: int = 0
    errors: int = 0
    default_rows: int = 0
    stale_rows: int = 0
    hedges: int = 0
    hedge_wins: int = 0
    seconds: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0


# Model, version, table.
Subject = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counts of the native core's cache of rows. rows, bytes: in the cache now."""

    rows: int
    bytes: int
    evictions: int


@dataclass(frozen=True, slots=True)
class RemoteCounts:
    """Counts of all reads of remote tables. cache: None where there is no cache."""

    tables: Mapping[Subject, ReadCounts]
    cache: CacheCounts | None = None


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The state of the clusters with remote tables.

    is_reached: cluster -> whether each of its hash slots has a node that answers. num_silent: cluster -> number of
    known nodes that do not answer. compared: table -> number of blocks that were compared with the version's files, and
    of known faulty blocks by fault. refused: table -> number of upserts that its cluster refused.
    """

    is_reached: Mapping[str, bool]
    num_silent: Mapping[str, int]
    compared: Mapping[Subject, tuple[int, Mapping[str, int]]]
    refused: Mapping[Subject, int]


class Found(NamedTuple):
    """The result of reading rows from a cluster.

    rows: [N, row_bytes] uint8. is_missing: [N] bool, True for rows that could not be read. why: the reason for these.
    """

    rows: Array
    is_missing: Array
    why: str


# How many seconds old a row may be. A table's cached rows are valid for so long after the moment up to which the server
# has read all changes; a replica is read for so long after the moment up to which it has all changes of its primary.
FRESH_S = 2.0


class Clusters:
    """The Valkey and Redis clusters from which the native core reads rows, and its cache of rows.

    Concurrency: any thread; no method but open() raises.

    Args:
      cache_bytes: the most bytes of rows that are cached; 0: none.
    """

    def __init__(self, cache_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self.holds_rows = cache_bytes > 0
        self.core = _native.Clusters(cache_bytes)

    def open(
        self, subject: Subject, layout: TableLayout, address: StoreAddress, default_rows: Sequence[int]
    ) -> OpenTable:
        """Opens a table and reads its default rows; raises OSError if one can not be read.

        Args:
          default_rows: the rows that replace unreadable rows; read again when they change.
        """
        description = json.dumps(remote_description(layout, address, default_rows))
        return OpenTable(self.core.open(*subject, layout.vocabulary_size, description), layout.row_bytes)

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes [N] int64 changed rows of a table from the cache; None: all its rows. Default rows are read again."""
        self.core.forget(*subject, None if ids is None else ids.tolist())

    def heard(self, subject: Subject, as_of_s: float) -> None:
        """Extends the time for which cached rows of a table are valid: all its changes up to a moment on
        time.monotonic() were read.
        """
        self.core.heard(*subject, time.monotonic() - as_of_s)

    def lost(self, subject: Subject) -> tuple[list[int], int, int]:
        """Returns the blocks that lacked a row that was read since the last call, and the numbers of reads and of
        failed reads.
        """
        return self.core.lost(*subject)

    def set_in_sync(self, until_s: Mapping[tuple[str, int], float]) -> None:
        """Lets rows of replicas, by host and port, be read until moments on time.monotonic()."""
        now_s = time.monotonic()
        self.core.set_in_sync([(*node, moment_s - now_s) for node, moment_s in until_s.items()])

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
    """A table in a cluster that the native core has opened. Concurrency: any thread."""

    core: _native.ClusterTable
    row_bytes: int

    def read(self, ids: Array) -> Found:
        """Reads the rows of [N] int64 ids, each from 0 to V - 1; blocks for at most the timeout_s of the address."""
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
