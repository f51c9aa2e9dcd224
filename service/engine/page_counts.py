"""Declares the counts of page reads and page drops of mapped tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageCounts:
    """The counts of the pages of all tables whose pages the native core reads, since the start of the server.

    rows: ids of lookups whose row was not in memory. reads: pages that were read for them. drops: pages that were
      dropped to keep to the bound. losses: pages that the kernel had dropped. seconds: time in which threads read
      pages. bytes: bytes of the pages that are in memory now. max_bytes: the bound on them.
    """

    rows: int
    reads: int
    drops: int
    losses: int
    seconds: float
    bytes: int
    max_bytes: int
