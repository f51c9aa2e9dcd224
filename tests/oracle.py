"""Computes the expected answers of lookups row by row in float64, by the formulas of the combiners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Rows = Sequence[Sequence[int]]
Weights = Sequence[Sequence[float]]


class Refused(Exception):
    """A request that the lookup must refuse: an id has no row in the table, or a row has too many ids."""


def combine(
    table: np.ndarray,
    rows: Rows,
    combiner: str,
    *,
    weights: Weights | None = None,
    at_least_one: bool = False,
    max_ids: int | None = None,
    truncate: bool = False,
    on_bad_id: str = "error",
    default_row: int = 0,
    positive_only: bool = False,
) -> np.ndarray:
    """Combines the vectors of each row's ids; returns [B, D] float64.

    Args:
      at_least_one: whether a mean divides by max(sum(w), 1), as the tensor core does, instead of by sum(w).
      max_ids: K; a longer row is cut if `truncate`, else refused.
      on_bad_id: as in service.artifact.manifest.LookupFeature.
      positive_only: whether ids with a weight of 0 or less are left out.
    """
    out = np.zeros((len(rows), table.shape[1]))
    for r, ids in enumerate(rows):
        pairs = list(zip(ids, weights[r] if weights is not None else [1.0] * len(ids), strict=True))
        if max_ids is not None and len(pairs) > max_ids:
            if not truncate:
                raise Refused(f"row {r}")
            pairs = pairs[:max_ids]
        vectors, factors = [], []
        for row_id, weight in pairs:
            if positive_only and not weight > 0:
                continue
            row = _row_of(row_id, len(table), on_bad_id, default_row)
            if row is None:
                continue
            vectors.append(table[row].astype(np.float64) * weight)
            factors.append(float(weight))
        total = np.sum(vectors, axis=0) if vectors else np.zeros(table.shape[1])
        if combiner == "sum":
            divisor = 1.0
        elif combiner == "sqrtn":
            divisor = float(np.sqrt(sum(f * f for f in factors)))
        else:
            divisor = max(sum(factors), 1.0) if at_least_one else sum(factors)
        out[r] = total / divisor if divisor else 0.0
    return out


def _row_of(row_id: int, vocabulary_size: int, on_bad_id: str, default_row: int) -> int | None:
    if 0 <= row_id < vocabulary_size:
        return row_id
    if on_bad_id == "default_row":
        return default_row
    if on_bad_id == "clamp":
        return min(max(row_id, 0), vocabulary_size - 1)
    if on_bad_id == "wrap" and -vocabulary_size <= row_id < 0:
        return vocabulary_size + row_id
    if on_bad_id == "drop" or (on_bad_id == "drop_negative" and row_id < 0):
        return None
    raise Refused(f"id {row_id}")


def sequence(
    table: np.ndarray, rows: Rows, length: int, *, on_bad_id: str = "error", default_row: int = 0
) -> np.ndarray:
    """Returns [B, length, D]: the vectors of each row's first ids, with zeros for dropped ids and for missing steps."""
    out = np.zeros((len(rows), length, table.shape[1]))
    for r, ids in enumerate(rows):
        for k, row_id in enumerate(ids[:length]):
            row = _row_of(row_id, len(table), on_bad_id, default_row)
            if row is not None:
                out[r, k] = table[row]
    return out


def gather(table: np.ndarray, ids: Sequence[int], *, on_bad_id: str = "error", default_row: int = 0) -> np.ndarray:
    """Returns [B, D]: the vector of each row's only id."""
    rows = [[row_id] for row_id in ids]
    return combine(table, rows, "sum", on_bad_id=on_bad_id, default_row=default_row)


def ragged(rows: Rows, dtype: str = "int64") -> tuple[np.ndarray, np.ndarray]:
    """Converts lists of unequal length to the values and row_splits of a ragged feature.

    >>> [a.tolist() for a in ragged([[1, 2], [], [3]])]
    [[1, 2, 3], [0, 2, 2, 3]]
    """
    values = np.array([value for row in rows for value in row], dtype)
    return values, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
