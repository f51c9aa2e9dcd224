"""Declares the cache of rows of remote tables, which the native core has."""

from __future__ import annotations

from typing import Protocol

from service.remote.counts import Subject
from service.remote.layout import TableLayout
from service.types import Array

# For how many seconds cached rows hold after the changes of their table were heard last.
FRESH_S = 2.0


class RowCache(Protocol):
    """The cache of rows. Concurrency: any thread.

    holds_rows: whether it has room for any.
    """

    @property
    def holds_rows(self) -> bool: ...

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes the [N] int64 rows of a table, which changed in the cluster; None: all its rows. Must not raise."""

    def heard(self, subject: Subject) -> None:
        """Notes that the changes of a table were heard, so that its cached rows hold. Must not raise."""

    def refresh(self) -> None:
        """Asks each cluster for its map of slots; waits for the nodes. Must not raise."""

    def fill(self, layout: TableLayout, version: int, ids: Array, seconds: float) -> int:
        """Reads the [N] int64 rows into the cache, the first ones first; returns how many it got in that time."""

    def rows(self, layout: TableLayout, version: int, ids: Array) -> tuple[Array, Array]:
        """Returns [N, row_bytes] uint8 rows of [N] int64 ids, of any age, and [N] bool, False where there is none."""
