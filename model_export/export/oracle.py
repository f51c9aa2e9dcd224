"""What every signature should answer, in numpy: written from the documented formulas, not from the graphs.

Computes in float64 on the bytes that the manifest points at, so that a comparison also shows that those bytes are the
tables.

>>> table = np.array([[0, 0], [1, 2], [3, 6]], np.float32)
>>> combined(table, RaggedIds(np.array([1, 2]), np.array([0, 2, 2])), "mean", "sum_weights").tolist()
[[2.0, 4.0], [0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from service.core.manifest import Combiner, Manifest, MeanDivisor
from service.core.types import Array, RaggedIds
from service.lookup.bundle import read_bundle

VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
VARIABLES_PREFIX = "variables/variables"


def combined(table: Array, ids: RaggedIds, combiner: Combiner, mean_divisor: MeanDivisor) -> Array:
    """Returns [B, D] float64 of a [V, D] table; an empty row gives zeros.

    sum: sum(w v). mean: sum(w v) / sum(w), or / max(sum(w), 1) with "at_least_one". sqrtn: sum(w v) / sqrt(sum(w w)).
    A divisor of 0 gives zeros.
    """
    weights = np.ones(len(ids.values)) if ids.weights is None else np.asarray(ids.weights, np.float64)
    rows = np.zeros((len(ids.row_splits) - 1, table.shape[1]))
    for row, (start, end) in enumerate(zip(ids.row_splits[:-1], ids.row_splits[1:], strict=True)):
        w = weights[start:end]
        total = w @ table[ids.values[start:end]].astype(np.float64)
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        if combiner == "mean" and mean_divisor == "at_least_one":
            divisor = max(divisor, 1.0)
        rows[row] = total / divisor if divisor else 0.0
    return rows


def predicted(tower: Mapping[str, Array], vectors: Mapping[str, Array]) -> Array:
    """Returns [B] float64 ratings of feature -> [B, D] vectors; the formula is in training/tower.py."""
    user, film, recent = vectors["user_id"], vectors["film_id"], vectors["recent_films"]
    x = np.concatenate([user, film, recent, vectors["genres"], vectors["occupation"]], axis=1)
    for depth in range(sum(name.startswith("hidden/") and name.endswith("/kernel") for name in tower)):
        x = np.maximum(x @ tower[f"hidden/{depth}/kernel"] + tower[f"hidden/{depth}/bias"], 0)
    x = (x @ tower["output/kernel"] + tower["output/bias"])[:, 0]
    taste = user[:, 1:] + recent @ tower["taste"]
    rating = tower["mean_rating"] + user[:, 0] + film[:, 0] + (taste * film[:, 1:]).sum(axis=1) + x
    low, high = tower["rating_range"]
    clipped: Array = np.clip(rating, low, high)
    return clipped


def read_tables(artifact: Path, manifest: Manifest) -> dict[str, Array]:
    """Returns [V, D] arrays of all tables, read where the manifest says they lie."""
    tables = {}
    for name, entry in manifest.tables.items():
        numbers = _read(artifact / entry.file, entry.dtype, entry.offset, entry.nbytes)
        tables[name] = numbers.reshape(entry.vocabulary_size, entry.embedding_dim)
    return tables


def read_tower(artifact: Path) -> dict[str, Array]:
    """Returns the tower's variables in float64, by name within the tower. Raises ExportError where there is none."""
    tower = {}
    for key, entry in read_bundle(artifact / VARIABLES_PREFIX).items():
        if key.startswith("tower/") and key.endswith(VARIABLE_SUFFIX):
            numbers = _read(entry.file, entry.dtype, entry.offset, entry.nbytes)
            name = key.removeprefix("tower/").removesuffix(VARIABLE_SUFFIX)
            tower[name] = numbers.reshape(entry.shape).astype(np.float64)
    if not tower:
        raise ExportError(f"{artifact} has no variables named tower/...; its predictions can not be checked")
    return tower


def _read(file: Path, dtype: str, offset: int, nbytes: int) -> Array:
    return np.fromfile(file, dtype, offset=offset, count=nbytes // np.dtype(dtype).itemsize)
