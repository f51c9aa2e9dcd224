"""Holds the native core's pager, which reads the pages of mapped tables, and gives its counts."""

from __future__ import annotations

import json

from service.engine.page_counts import PageCounts


class Pages:
    """The native core's pager, which reads the pages of mapped tables. Concurrency: any thread.

    Args:
      max_bytes: the most bytes of tables that stay in memory.
    """

    def __init__(self, max_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self.core = _native.Pager(max_bytes)

    def counts(self) -> PageCounts:
        found = json.loads(self.core.counts())
        return PageCounts(
            rows=found["rows"],
            reads=found["reads"],
            drops=found["drops"],
            losses=found["losses"],
            seconds=found["nanos"] / 1e9,
            bytes=found["bytes"],
            max_bytes=found["max_bytes"],
        )
