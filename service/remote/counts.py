"""Counts of the reads of remote tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """Counts of the reads of one table.

    rows, bytes: that were read. retries: rounds beyond the first. errors: reads that lacked a row at their end.
    default_rows: rows in whose place a default row was read. seconds: of all reads, waiting included.
    """

    reads: int = 0
    rows: int = 0
    bytes: int = 0
    retries: int = 0
    errors: int = 0
    default_rows: int = 0
    seconds: float = 0.0
