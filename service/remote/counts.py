"""Declares the counts of reads from remote tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounts:
    """Counts of reads from one remote table.

    rows, bytes: rows that were read, and their bytes. retries: rounds of requests beyond a read's first one.
    errors: reads that could not read all rows. default_rows: rows that were replaced by a default row.
    seconds: total time of all reads, waiting included.
    """

    reads: int = 0
    rows: int = 0
    bytes: int = 0
    retries: int = 0
    errors: int = 0
    default_rows: int = 0
    seconds: float = 0.0
