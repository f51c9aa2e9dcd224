"""Declares the counts of page reads and page drops, for tables that are larger than memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageCounts:
    """The counts of the pages of all tables that are larger than memory, since the start of the server.

    rows: ids of lookups whose row was not in memory. reads: pages that were read. drops: pages that were dropped to
      keep to the bound. losses: pages that the kernel had dropped. seconds: time in which threads read pages.
    bytes: bytes of the pages that are in memory now. max_bytes: the bound on them.
    """

    rows: int
    reads: int
    drops: int
    losses: int
    seconds: float
    bytes: int
    max_bytes: int
