"""Declares the counts of batches of graph runs, which the native core makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.observe.buckets import BATCH_ROWS, Rows, Times


def _batch_rows() -> Rows:
    return Rows(BATCH_ROWS)


@dataclass(slots=True)
class Batches:
    """Counts of batches of graph runs since the server's start.

    num_runs: batches; num_requests: requests in them, a split request counted in each of its batches. waits: times by
      name of the thread pool. padding: rows of padding by rows of the batch. arrived: rows of requests; run: rows of
      batches with padding. rejected: refused requests by code.
    """

    num_runs: int = 0
    num_requests: int = 0
    waits: dict[str, Times] = field(default_factory=dict)
    padding: dict[int, Rows] = field(default_factory=dict)
    arrived: Rows = field(default_factory=_batch_rows)
    run: Rows = field(default_factory=_batch_rows)
    rejected: dict[str, int] = field(default_factory=dict)
