"""Holds the native core's clusters, and adds the core's counts of reads to those of the reference servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from service.remote.counts import CacheCounts, ReadCounts, RemoteCounts, Subject
from service.remote.layout import TableLayout
from service.types import Array


class Clusters:
    """The Valkey and Redis clusters from which the native core reads rows. Concurrency: any thread.

    Args:
      cache_bytes: the most bytes of rows that are cached; 0: none.
    """

    def __init__(self, cache_bytes: int) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        self._cache_bytes = cache_bytes
        self.core = _native.Clusters(cache_bytes)

    @property
    def holds_rows(self) -> bool:
        """Whether the native core's cache of remote tables' rows may hold rows at all: its size is not 0."""
        return self._cache_bytes > 0

    def forget(self, subject: Subject, ids: Array | None) -> None:
        """Removes [N] int64 rows of a table, which changed in its cluster, from the native core's cache; None: all."""
        self.core.forget(*subject, None if ids is None else ids.tolist())

    def heard(self, subject: Subject) -> None:
        """Extends the time for which cached rows of a table are valid: the server has read all changes of the table."""
        self.core.heard(*subject)

    def lost(self, subject: Subject) -> tuple[list[int], int, int]:
        """Returns the blocks of a table that lacked a row that was read since the last call, and the table's numbers of
        reads and of failed reads.
        """
        return self.core.lost(*subject)

    def set_in_sync(self, nodes: Sequence[tuple[str, int]], seconds: float) -> None:
        """Lets the native core read rows of the given replicas for `seconds` from now."""
        self.core.set_in_sync(list(nodes), seconds)

    def refresh(self) -> None:
        """Asks each Valkey or Redis cluster for its map of hash slots to nodes; blocks until the nodes reply."""
        self.core.refresh()

    def fill(self, layout: TableLayout, version: int, ids: Array, seconds: float) -> int:
        """Reads the rows of [N] int64 ids into the cache, in this order, for at most `seconds`.

        Returns the number of these rows that are in the cache then.
        """
        return self.core.fill(layout.tag, version, ids.tolist(), seconds)

    def rows(self, layout: TableLayout, version: int, ids: Array) -> tuple[Array, Array]:
        """Returns [N, row_bytes] uint8 cached rows of [N] int64 ids, and [N] bool, False for a row that the cache
        lacks."""
        octets, has_row = self.core.cached_rows(layout.tag, version, layout.row_bytes, ids.tolist())
        return np.frombuffer(octets, np.uint8).reshape(ids.size, layout.row_bytes), np.array(has_row, bool)

    def counts(self, of_reference: Mapping[Subject, ReadCounts]) -> RemoteCounts:
        """Returns the sums of the reference servers' and the native core's counts of reads from remote tables."""
        found = dict(of_reference)
        tables, cache = json.loads(self.core.counts())
        for one in tables:
            subject = one["model"], one["version"], one["table"]
            one["seconds"] = one["nanos"] / 1e9
            counts = ReadCounts(*(one[field.name] for field in fields(ReadCounts)))
            found[subject] = found.get(subject, ReadCounts()).plus(counts)
        return RemoteCounts(found, None if cache is None else CacheCounts(**cache))


def remote_counts(clusters: Clusters | None, of_reference: Mapping[Subject, ReadCounts]) -> RemoteCounts:
    """Returns the counts of all reads from remote tables. clusters: None without the native core."""
    return RemoteCounts(of_reference) if clusters is None else clusters.counts(of_reference)
