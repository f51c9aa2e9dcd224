"""Measures what a table loses when it is stored in fewer bits: errors of numbers, angles of rows, changed neighbours.

Rows with NaN or infinity, and angles of rows of zeros, are left out. Relative errors leave out numbers that are 0.

>>> losses = Losses("int8")
>>> losses.add(np.float32([[3, 4], [0, 0]]), np.float32([[3, 3], [0, 0]]))
>>> losses.largest_error, losses.mean_error, losses.largest_relative_error, round(losses.mean_cosine, 4)
(1.0, 0.25, 0.25, 0.9899)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model_export.graphs.reduced_table import REDUCED_KEY
from model_export.statistics.table_health import Progress
from service.artifact.manifest import Manifest
from service.types import Array

# Key in the provenance of a version whose tables were stored in fewer bits. Its value names the source version, and
# says why predictions are not affected.
REDUCED_FROM_KEY = "reduced_from"

MOST_QUERIES = 2_000
MOST_CANDIDATES = 100_000
NEIGHBOURS = 10
_SEED = 0
_BLOCK_ROWS = 100
# Two cosines count as equal if their difference is at most this number, about the rounding error of a cosine.
_TIE = 1e-6


@dataclass(slots=True)
class Losses:
    """Errors of one table's rows, summed up for their means. Concurrency: one caller at a time.

    Pass the table's rows to add(), a block at a time.
    """

    dtype: str
    largest_error: float = 0.0
    largest_relative_error: float = 0.0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("error", "relative", "cosine"), 0.0))
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("error", "relative", "cosine"), 0))

    def add(self, trained: Array, stored: Array) -> None:
        is_finite = np.isfinite(trained).all(axis=1)
        exact, found = trained[is_finite].astype(np.float64), stored[is_finite].astype(np.float64)
        if not exact.size:
            return
        errors = np.abs(found - exact)
        self.largest_error = max(self.largest_error, float(errors.max()))
        self._count("error", errors)
        is_some = exact != 0
        relative = errors[is_some] / np.abs(exact[is_some])
        self.largest_relative_error = max(self.largest_relative_error, float(relative.max(initial=0)))
        self._count("relative", relative)
        lengths = np.linalg.norm(exact, axis=1)
        products = lengths * np.linalg.norm(found, axis=1)
        # A row that became all zeros has no angle to the trained row; its cosine counts as 0.
        cosines = np.divide((exact * found).sum(axis=1), products, out=np.zeros_like(products), where=products > 0)
        self._count("cosine", np.minimum(cosines[lengths > 0], 1.0))

    @property
    def mean_error(self) -> float:
        """Mean absolute error of a reduced table's numbers; rows with NaN or infinity are left out."""
        return self._mean("error", 0.0)

    @property
    def mean_relative_error(self) -> float:
        """Mean relative error of a reduced table's numbers; trained numbers that are 0 are left out."""
        return self._mean("relative", 0.0)

    @property
    def mean_cosine(self) -> float:
        """Mean cosine between each trained row and the row in fewer bits that lookups read."""
        return self._mean("cosine", 1.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "largest_error": self.largest_error,
            "mean_error": self.mean_error,
            "largest_relative_error": self.largest_relative_error,
            "mean_relative_error": self.mean_relative_error,
            "mean_cosine": self.mean_cosine,
        }

    def _count(self, what: str, numbers: Array) -> None:
        self._sums[what] += float(numbers.sum())
        self._counts[what] += numbers.size

    def _mean(self, what: str, otherwise: float) -> float:
        return self._sums[what] / self._counts[what] if self._counts[what] else otherwise


def sample_rows(vocabulary_size: int) -> Array:
    """Returns [N] ascending ids of the rows among which neighbours are searched: all rows, or a seeded sample."""
    if vocabulary_size <= MOST_CANDIDATES:
        return np.arange(vocabulary_size)
    random = np.random.default_rng(_SEED)
    return np.sort(random.choice(vocabulary_size, MOST_CANDIDATES, replace=False))


def neighbours_kept(
    trained: Array,
    stored: Array,
    *,
    vocabulary_size: int | None = None,
    progress: Progress = lambda done, rows: None,
) -> dict[str, Any]:
    """Measures the share of nearest neighbours that stay nearest in fewer bits, over MOST_QUERIES rows; returns a JSON
    object.

    A neighbour among the stored rows is a hit if, among the trained rows, it is at least as near as the last of the
    trained neighbours. So equal rows do not count as losses.

    Args:
      trained, stored: [N, D] float32, of the same ids.
      vocabulary_size: V of the table that the rows are a sample of; None: the rows are the whole table.
      progress: called with (queries done, queries).

    Returns:
      recall_at_10 (None if there are fewer than two rows), queries, candidates, rows (of the table), neighbours.
    """
    is_used = np.isfinite(trained).all(axis=1) & (np.abs(trained).max(axis=1) > 0)
    exact, found = _unit(trained[is_used]), _unit(stored[is_used])
    candidates = len(exact)
    neighbours = min(NEIGHBOURS, candidates - 1)
    record = {
        "queries": min(MOST_QUERIES, candidates),
        "candidates": candidates,
        "rows": len(trained) if vocabulary_size is None else vocabulary_size,
        "neighbours": max(neighbours, 0),
    }
    if neighbours < 1:
        return {"recall_at_10": None, **record}
    queries = np.random.default_rng(_SEED).choice(candidates, record["queries"], replace=False)
    hits = 0
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        near = _others(exact[block] @ exact.T, block)
        last = np.partition(near, -neighbours, axis=1)[:, -neighbours]
        chosen = np.argpartition(_others(found[block] @ found.T, block), -neighbours, axis=1)[:, -neighbours:]
        hits += int((np.take_along_axis(near, chosen, axis=1) >= last[:, None] - _TIE).sum())
        progress(min(start + _BLOCK_ROWS, len(queries)), len(queries))
    return {"recall_at_10": hits / (len(queries) * neighbours), **record}


def reduction_lines(manifest: Manifest) -> list[str]:
    lines = [f"reduced from version {manifest.provenance[REDUCED_FROM_KEY]['of']}"]
    for name, record in manifest.provenance[REDUCED_KEY].items():
        first, *rest = report_lines(name, record)
        lines += [f"  {first}", *(f"    {line}" for line in rest)]
    return [*lines, f"  predictions: {manifest.provenance[REDUCED_FROM_KEY]['predictions']}"]


def report_lines(name: str, record: Mapping[str, Any]) -> list[str]:
    lines = []
    if "bytes_before" in record:
        before, after = record["bytes_before"], record["bytes_after"]
        lines.append(f"{name}  {record['dtype']}, {before:,} bytes before, {after:,} after ({after / before:.1%})")
    lines.append(
        f"error: at most {record['largest_error']:.3g} (bound of {record['dtype']}: {record['error_bound']:.3g})"
    )
    if "mean_error" in record:
        lines[-1] += f", mean {record['mean_error']:.3g}"
        lines.append(
            f"relative error: at most {record['largest_relative_error']:.3g}, mean {record['mean_relative_error']:.3g}"
        )
        lines.append(f"mean cosine between trained and reduced rows: {record['mean_cosine']:.6f}")
    if record.get("recall_at_10") is not None:
        what = (
            "all rows"
            if record["queries"] == record["candidates"]
            else f"a seeded sample of {record['queries']:,} rows"
        )
        lines.append(
            f"recall@{record['neighbours']}: {record['recall_at_10']:.4f} of the nearest neighbours (cosine, exact) of "
            f"{what}, looked for among {record['candidates']:,} of {record['rows']:,}"
        )
    return lines


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    unit: Array = np.divide(rows, lengths, out=np.zeros(rows.shape), where=lengths > 0).astype(np.float32)
    return unit


def _others(cosines: Array, block: Array) -> Array:
    # A row must not count as its own neighbour.
    cosines[np.arange(len(block)), block] = -np.inf
    return cosines
