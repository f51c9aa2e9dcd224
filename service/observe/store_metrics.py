"""Writes the metrics of object stores, by model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from service.observe.metric_text import family, labels, sample

_PREFIX = "embedding_server_store_"


class StoreCounts(Protocol):
    """Counts of reads from one model's object store. read_bytes: bytes of objects that were read."""

    read_bytes: int
    listings: int
    failures: int
    fetched: int


_FAMILIES: tuple[tuple[str, str, Callable[[StoreCounts], int]], ...] = (
    ("read_bytes_total", "Bytes of objects that were read from a model's object store.", lambda one: one.read_bytes),
    ("listings_total", "Listings of a model's versions in its object store.", lambda one: one.listings),
    ("failures_total", "Listings and fetches that failed.", lambda one: one.failures),
    ("fetched_versions_total", "Versions that were fetched to their end.", lambda one: one.fetched),
)


def store_lines(mirrors: Sequence[tuple[str, StoreCounts, bool]]) -> list[str]:
    """Returns the lines of metrics on object stores; none if no model is in one.

    Args:
      mirrors: of each model in a store: its name, its counts, and whether its store could be listed the last time.
    """
    if not mirrors:
        return []
    lines = []
    for part, about, read in _FAMILIES:
        name = _PREFIX + part
        lines += family(name, "counter", about)
        lines += [sample(name, labels({"model": model}), float(read(counts))) for model, counts, _ in mirrors]
    name = _PREFIX + "is_listed"
    lines += family(name, "gauge", "Whether a model's object store could be listed the last time: 1, else 0.")
    return lines + [sample(name, labels({"model": model}), float(is_listed)) for model, _, is_listed in mirrors]
