"""Metrics of rows that change without a new version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from service.core.deltas import DeltaStatus
from service.core.servable import LoadedServable
from service.metrics.text import Kind, family, labels, sample

_PREFIX = "embedding_server_delta_"
_FAMILIES: tuple[tuple[str, Kind, str, Callable[[DeltaStatus], float]], ...] = (
    ("last_sequence", "gauge", "Highest number of a delta that is answered.", lambda status: status.last_sequence),
    ("rows", "gauge", "Rows that differ from the version's own, or did.", lambda status: status.rows),
    ("pending", "gauge", "Deltas that were read and are not answered yet.", lambda status: status.pending),
    ("lag_seconds", "gauge", "For how long the oldest delta waits, or can not be read.", lambda status: status.lag_s),
    ("missing", "gauge", "Numbers below the last one that never came.", lambda status: status.missing),
    ("applied_total", "counter", "Deltas that were applied.", lambda status: status.applied),
)
_BY_REASON: tuple[tuple[str, str, Callable[[DeltaStatus], Mapping[str, int]]], ...] = (
    ("refused_total", "Deltas that were refused, by reason.", lambda status: status.refused),
    (
        "journal_failures_total",
        "Upserts that the journal did not take, by reason: full, held, unwritable.",
        lambda status: status.journal_failures,
    ),
)


def delta_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the families of versions whose rows may change; none where there is no such version."""
    found = [
        ({"model": one.servable.name, "version": one.servable.version}, one.servable.deltas.status())
        for one in loaded
        if one.servable.deltas is not None
    ]
    if not found:
        return []
    lines = []
    for part, kind, about, read in _FAMILIES:
        lines += family(_PREFIX + part, kind, about)
        lines += [sample(_PREFIX + part, labels(names), float(read(status))) for names, status in found]
    for part, about, counts in _BY_REASON:
        lines += family(_PREFIX + part, "counter", about)
        lines += [
            sample(_PREFIX + part, labels({**names, "reason": reason}), float(count))
            for names, status in found
            for reason, count in sorted(counts(status).items())
        ]
    return lines
