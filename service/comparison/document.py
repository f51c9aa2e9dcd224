"""The data of a comparison of two versions: dataclasses that the server and `model-export diff` write as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# A row has drifted if the cosine of its old and its new vector, after alignment, is below this.
#
# Measured on 1,683 rows of 32 numbers: of two trainings with different seeds, 30 % of the rows have a cosine below 0.3;
# of a table whose rows were permuted, 95 %.
DRIFTED_COSINE = 0.3
# Gates beside the share of drifted rows. The norms of two trainings differ by less; a table in other units, or a broken
# row, by more.
MAX_NORM_FACTOR = 4.0
MAX_ROW_FACTOR = 32.0
MAX_OUTLYING_PERCENT = 0.5
# Two trainings use the same number of directions, and keep more neighbours than unrelated tables do.
MIN_DIRECTIONS = 0.85
MIN_NEIGHBOURS = 0.02
MIN_CORRELATION = 0.5


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram: counts[i] values lie in [edges[i], edges[i + 1]); the outer bins also count the values beyond."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of rows: their number, and the keys of the first ten rows (the ids, if the table has no vocabulary)."""

    count: int = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriftedRow:
    """A row whose old and new vectors differ in direction. cosine: None if a number of the row is not finite."""

    name: str
    old_id: int
    new_id: int
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between the old and the new vectors of a table's rows, for the rows that both versions have.

    rows: number of compared rows: all common rows, or a sample of them.
    is_aligned: rows are compared after the rotation that fits them best; False for a table with too few rows to fit a
      rotation, whose rows are compared as they are.
    cosines: of the old and new vector of each row, without the mean rows. norm_ratios: new norm / old norm, of rows
      that are finite and not 0.
    median_cosine, median_unaligned_cosine: with and without the rotation; None if no cosine is finite.
    median_norm_ratio: of the rows that are finite and not 0; None without one. outlying: rows whose norm ratio is
      beyond MAX_ROW_FACTOR times the median, or that are not finite or 0 in one version only.
    directions: effective number of dimensions of the old and the new rows around their mean: exp of the entropy of the
      shares that the principal components have of the variance.
    equal: rows whose numbers are the same. drifted: rows with a cosine below DRIFTED_COSINE, or with a number that is
      not finite. percent: share of drifted rows. worst: the ten most drifted rows.
    """

    rows: int
    is_aligned: bool
    cosines: Histogram
    norm_ratios: Histogram
    median_cosine: float | None
    median_unaligned_cosine: float | None
    median_norm_ratio: float | None
    outlying: int
    directions: tuple[float, float]
    equal: int
    drifted: int
    percent: float
    worst: tuple[DriftedRow, ...]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The overlap of the nearest neighbours (by cosine) of some rows in both versions of a table.

    k: neighbours of a row. queries: number of rows whose neighbours were searched, the hottest rows if is_hottest is
    True, else a sample. pool: number of common rows among which neighbours were searched.
    overlap: mean share of the k old neighbours that are new neighbours too. chance: the share of unrelated tables.
    """

    k: int
    queries: int
    is_hottest: bool
    pool: int
    overlap: float
    chance: float


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The result of a comparison of one table between two versions of a model.

    matched_by: "key": rows of equal keys belong together; "id": rows of equal ids.
    added, removed: rows that only the new or the old version has. moved: rows of a key that have another id now.
    drift: None for a reason that `notes` has. neighbours: None for fewer than 20 common rows.
    """

    table: str
    matched_by: Literal["key", "id"]
    old_rows: int
    new_rows: int
    old_dim: int
    new_dim: int
    old_dtype: str
    new_dtype: str
    added: Rows
    removed: Rows
    moved: Rows
    common: int
    drift: Drift | None = None
    neighbours: Neighbours | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """The difference between two versions' answers to recorded requests, for one output of one signature.

    values: number of compared numbers. changed: numbers that differ.
    """

    signature: str
    output: str
    requests: int
    values: int
    changed: int
    mean_absolute: float
    max_absolute: float
    correlation: float | None


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """The result of a comparison of two versions of a model.

    tables: the tables of both versions. added_tables, removed_tables: names of tables that only one version has.
    predictions: None if recorded requests were not run.
    """

    old: str
    new: str
    tables: tuple[TableDiff, ...]
    added_tables: tuple[str, ...] = ()
    removed_tables: tuple[str, ...] = ()
    predictions: tuple[OutputDiff, ...] | None = None
    notes: tuple[str, ...] = ()

    def refusals(self, max_drift: float) -> list[str]:
        found = [
            f'table "{table.table}": {why}' for table in self.tables for why in _refusals(table, max_drift, self.old)
        ]
        return found + [
            f"output {one.output} of signature {one.signature}: its answers to {one.requests} recorded requests have a "
            f"correlation of {one.correlation:.3g} to those of version {self.old}, below {MIN_CORRELATION:g}"
            for one in self.predictions or ()
            if one.correlation is not None and one.correlation < MIN_CORRELATION
        ]

    @property
    def drift_percent(self) -> float | None:
        """Largest percentage of drifted rows among the tables with a fitted rotation; None if no table has one."""
        judged = [table.drift.percent for table in self.tables if table.drift is not None and table.drift.is_aligned]
        return max(judged, default=None)

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = plain(self)
        return {**fields, "drift_percent": plain(self.drift_percent), "drifted_cosine": DRIFTED_COSINE}


def _refusals(table: TableDiff, max_drift: float, old: str) -> Iterator[str]:
    drift, neighbours = table.drift, table.neighbours
    if drift is not None:
        if drift.is_aligned and drift.percent > max_drift:
            yield (
                f"{drift.percent:.3g} % of {drift.rows} compared rows have a cosine below {DRIFTED_COSINE:g} to "
                f"version {old} after alignment"
            )
        ratio = drift.median_norm_ratio
        if ratio is not None and not 1 / MAX_NORM_FACTOR <= ratio <= MAX_NORM_FACTOR:
            yield f"the norms of its rows are {ratio:.3g} times those of version {old} (median)"
        if drift.outlying > drift.rows * MAX_OUTLYING_PERCENT / 100:
            yield (
                f"the norms of {drift.outlying} of {drift.rows} compared rows changed by more than a factor of "
                f"{MAX_ROW_FACTOR:g}, or to or from 0, NaN or infinity"
            )
        before, after = drift.directions
        if drift.is_aligned and min(before, after) < MIN_DIRECTIONS * max(before, after):
            yield f"its rows spread over {after:.1f} dimensions, those of version {old} over {before:.1f}"
    # With a small pool, unrelated tables share many neighbours, so that the overlap says little.
    if (
        neighbours is not None
        and neighbours.chance < MIN_NEIGHBOURS
        and neighbours.overlap < neighbours.chance + MIN_NEIGHBOURS
    ):
        yield (
            f"{neighbours.overlap:.2%} of the {neighbours.k} nearest neighbours of a row are those of version {old}; "
            f"unrelated tables share {neighbours.chance:.2%}"
        )


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
