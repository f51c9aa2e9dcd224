"""Declares the counts of reads from remote tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
