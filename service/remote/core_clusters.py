"""Declares the native core's reader of Valkey and Redis clusters, for the folders that may not import the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from service.remote.address import StoreAddress
from service.remote.counts import Subject
from service.remote.layout import TableLayout
from service.types import Array


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
