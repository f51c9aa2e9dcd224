"""The data of a comparison of two versions: dataclasses that the server and `model-export diff` write as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# A row has drifted if the cosine of its old and its new vector, after alignment, is below this.
#
# Measured on 1,683 rows of 32 numbers: of two trainings with different seeds, 30 % of the rows have a cosine below 0.3;
# of a table whose rows were permuted, 95 %.
DRIFTED_COSINE = 0.3


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
    cosines: of the old and new vector of each row. norm_ratios: new norm / old norm, of rows that are finite and not 0.
    median_cosine, median_unaligned_cosine: with and without the rotation; None if no cosine is finite.
    equal: rows whose numbers are the same. drifted: rows with a cosine below DRIFTED_COSINE, or with a number that is
      not finite. percent: share of drifted rows. worst: the ten most drifted rows.
    """

    rows: int
    is_aligned: bool
    cosines: Histogram
    norm_ratios: Histogram
    median_cosine: float | None
    median_unaligned_cosine: float | None
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

    @property
    def drift_percent(self) -> float | None:
        """Largest percentage of drifted rows among the tables with a fitted rotation; None if no table has one."""
        judged = [table.drift.percent for table in self.tables if table.drift is not None and table.drift.is_aligned]
        return max(judged, default=None)

    def to_json(self) -> dict[str, Any]:
        """Returns this comparison of two versions as plain JSON values; a number that is not finite is null."""
        fields: dict[str, Any] = _plain(self)
        return {**fields, "drift_percent": _plain(self.drift_percent), "drifted_cosine": DRIFTED_COSINE}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
