"""Declares the counts of what lookups read: hot rows, ids by feature, and pages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from service.artifact.row_labels import NO_LABELS, RowLabels

DEFAULT_HOT_ROWS = 100
MAX_HOT_ROWS = 2000


class SampledRows(NamedTuple):
    """The hottest rows of one table, estimated from the native core's sample of looked-up ids.

    samples: number of ids in the sample that have a row. lookups: estimated number of ids of lookups that have a row.
    distinct: number of different rows in the sample, estimated with an error of some 2 per cent.
    overcount: by how much the lookups of a row may be too large, beside the error of the sample.
    rows: pairs of a row and its estimated lookups, the hottest first.
    """

    samples: int
    lookups: int
    distinct: int
    overcount: int
    rows: tuple[tuple[int, int], ...]


class FeatureIds(NamedTuple):
    """Exact counts of the ids that requests sent for one feature, over all signatures.

    unknown_ids: ids without a row. default_ids: those of them in whose place another row was read.
    """

    ids: int = 0
    unknown_ids: int = 0
    default_ids: int = 0


# Table -> feature -> counts.
FeatureCounts = Mapping[str, Mapping[str, FeatureIds]]


def summed(*counts: FeatureCounts) -> dict[str, dict[str, FeatureIds]]:
    """Adds up counts of ids from several sources, for each table and each feature.

    >>> one = {"film": {"film_id": FeatureIds(3, 1)}}
    >>> summed(one, one)["film"]["film_id"]
    FeatureIds(ids=6, unknown_ids=2, default_ids=0)
    """
    totals: dict[str, dict[str, FeatureIds]] = {}
    for source in counts:
        for table, features in source.items():
            of_table = totals.setdefault(table, {})
            for feature, more in features.items():
                of_table[feature] = FeatureIds(*map(operator.add, of_table.get(feature, FeatureIds()), more))
    return totals


class HotRow(NamedTuple):
    """One hot row. lookups: estimated number of lookups.

    key: its key in the table's vocabulary; label: what people call it; None without one.
    """

    id: int
    key: str | int | None
    label: str | None
    lookups: int
    share: float


@dataclass(frozen=True, slots=True)
class TableTraffic:
    """The counts of lookups of one table since its version was loaded, with its hottest rows.

    lookups: estimated number of ids that were looked up in the table and have a row. distinct: estimated number of
    different rows in the sample: no more than that of all looked-up rows.
    max_overcount: as SampledRows.overcount. sampled: number of ids in the sample.
    oov_keys: keys that no vocabulary has. features: exact counts by feature.
    """

    model: str
    version: int
    table: str
    lookups: int
    distinct: int
    max_overcount: int
    sampled: int
    oov_keys: int
    rows: tuple[HotRow, ...]
    features: Mapping[str, FeatureIds] = field(default_factory=dict)

    def top_share(self, count: int) -> float:
        return min(sum(row.share for row in self.rows[:count]), 1.0)


def hot_rows_of(
    sampled: SampledRows, key_of: Callable[[int], str | int | None] = lambda row: None, labels: RowLabels = NO_LABELS
) -> tuple[HotRow, ...]:
    names = labels.of(row for row, _ in sampled.rows)
    return tuple(
        HotRow(row, key_of(row), name, count, round(min(count / sampled.lookups, 1.0), 6))
        for (row, count), name in zip(sampled.rows, names, strict=True)
    )


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
