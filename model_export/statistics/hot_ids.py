"""Counts the commonest ids of a stream of ids, in bounded memory.

Counts are exact up to `capacity` distinct ids. With more ids they are the counts of Misra and Gries: too low by at most
`undercount`, and an id without a count came at most `undercount` times.

>>> counts = IdCounts(capacity=2).with_ids(np.array([7, 7, 7, 5, 9]))
>>> counts.ids, counts.counts, counts.undercount
(array([7]), array([2]), 1)

Source: Misra and Gries, "Finding repeated elements" (1982); merging as in Agarwal et al., "Mergeable summaries" (2012).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from service.types import Array


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class IdCounts:
    """Record of the commonest ids of a stream of ids, with their counts.

    capacity: maximum number of ids with a count.
    ids: [n] int64, ascending. counts: [n] int64, each above 0.
    undercount: upper bound on how much a count is too low.
    """

    capacity: int
    ids: Array = field(default_factory=_none)
    counts: Array = field(default_factory=_none)
    undercount: int = 0

    def with_ids(self, ids: Array) -> IdCounts:
        """Returns the counts after [n] more ids of the stream; each occurrence of an id counts."""
        found, counts = np.unique(np.asarray(ids, np.int64), return_counts=True)
        return self.merged(IdCounts(self.capacity, found, counts))

    def merged(self, other: IdCounts) -> IdCounts:
        ids, position = np.unique(np.concatenate([self.ids, other.ids]), return_inverse=True)
        counts = np.zeros(len(ids), np.int64)
        np.add.at(counts, position, np.concatenate([self.counts, other.counts]))
        undercount = self.undercount + other.undercount
        if len(ids) > self.capacity:
            # To keep at most `capacity` ids, subtract the (capacity + 1)-th largest count from all counts, and drop
            # each id whose count is then not positive.
            off = int(np.partition(counts, -(self.capacity + 1))[-(self.capacity + 1)])
            kept = counts > off
            ids, counts, undercount = ids[kept], counts[kept] - off, undercount + off
        return IdCounts(self.capacity, ids, counts, undercount)

    def top(self, n: int) -> list[tuple[int, int]]:
        order = np.lexsort((self.ids, -self.counts))[:n]
        return [(int(self.ids[i]), int(self.counts[i])) for i in order]
