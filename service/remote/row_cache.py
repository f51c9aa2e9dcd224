"""Declares the cache of rows of remote tables, which the native core has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.remote.counts import Subject
from service.remote.layout import TableLayout
from service.types import Array

# For how many seconds cached rows are valid after the server last read the changes of their table.
FRESH_S = 2.0


class RowCache(Protocol):
    """The native core's cache of rows of remote tables. Concurrency: any thread.

    holds_rows: whether the cache may hold rows at all: its size is not 0.
    """

    @property
    def holds_rows(self) -> bool: ...

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes [N] int64 changed rows of a table from this cache of rows; None: all its rows. Must not raise."""

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

    def rows(self, layout: TableLayout, version: int, ids: Array) -> tuple[Array, Array]:
        """Returns [N, row_bytes] uint8 rows of [N] int64 ids, of any age, and [N] bool, False for a row that the cache
        lacks."""
