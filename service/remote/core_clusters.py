"""Declares the native core's reader of Valkey and Redis clusters, for the folders that may not import the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from service.types import Array


@dataclass(slots=True)
class ReadCounts:
    """Counts of reads from one remote table.

    rows, bytes: rows that were read, and their bytes. retries: rounds of requests beyond a read's first one.
    errors: reads that could not read all rows. default_rows: rows that were replaced by a default row. stale_rows: rows
    that were replaced by a cached row. hedges: reads of a node that were also sent to a second node; hedge_wins: hedged
    reads that the second node answered first. seconds: total time of all reads, waiting included. cache_hits,
    cache_misses: rows that the native core's cache had
    and lacked.
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
    """Counts of the native core's cache of rows.

    rows, bytes: in the cache now. evictions: rows that other rows displaced.
    """

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


class ClusterTable(Protocol):
    """A table in a cluster, as the native core has opened it. Concurrency: any thread."""

    def read(self, ids: Array) -> Found:
        """Reads the rows of [N] int64 ids, each from 0 to V - 1; blocks for at most the timeout_s of the address."""

    def default_row(self, row: int, uses: int) -> Array | None:
        """Returns the [row_bytes] uint8 of a default row, and counts that `uses` ids read it; None if the table has no
        such default row.
        """


class CoreClusters(Protocol):
    """The clusters from which the native core reads rows, and its cache of rows. Concurrency: any thread.

    holds_rows: whether the cache may hold rows at all: its size is not 0.
    """

    @property
    def holds_rows(self) -> bool: ...

    def open(
        self,
        subject: Subject,
        layout: TableLayout,
        address: StoreAddress,
        default_rows: Sequence[int],
    ) -> ClusterTable:
        """Opens a table and reads its default rows; raises OSError if one can not be read.

        Args:
          default_rows: the rows that replace unreadable rows; read again when they change.
        """

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes [N] int64 changed rows of a table from the cache; None: all its rows. Must not raise."""

    def heard(self, subject: Subject) -> None:
        """Extends the time for which cached rows of a table are valid: all its changes were read. Must not raise."""

    def lost(self, subject: Subject) -> tuple[list[int], int, int]:
        """Returns the blocks that lacked a row that was read since the last call, and the numbers of reads and of
        failed reads. Must not raise.
        """

    def set_in_sync(self, nodes: Sequence[tuple[str, int]], seconds: float) -> None:
        """Lets rows of the given replicas be read for `seconds` from now. Must not raise."""

    def refresh(self) -> None:
        """Asks each Valkey or Redis cluster for its map of hash slots to nodes; blocks. Must not raise."""

    def fill(self, layout: TableLayout, version: int, ids: Array, seconds: float) -> int:
        """Reads the rows of [N] int64 ids into the cache, in this order, for at most `seconds`.

        Returns the number of these rows that are in the cache then.
        """
