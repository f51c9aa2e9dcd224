"""Inputs that signatures are compared on: edges first, then seeded random rows; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from service.core.manifest import LookupFeature, Manifest, SignatureEntry
from service.core.types import Array, RaggedIds

# Feature -> ids: [B] int64 for one id per row, RaggedIds otherwise.
Case = Mapping[str, Array | RaggedIds]

_LONGEST_ROW = 12
_SEED = 20


def lookup_cases(manifest: Manifest, signature: SignatureEntry) -> Iterator[Case]:
    """Yields cases of a lookup, with and without weights: 0 rows, 1 row, both sides of every batch size; empty first,
    middle and last rows; repeated ids, the first and the last id of a table; negative weights, weights that sum to 0
    and to less than 1.
    """
    rng = np.random.default_rng(_SEED)
    sizes = {0, 1, 2, 7, *signature.batch_sizes, *(size + 1 for size in signature.batch_sizes[:-1])}
    most = max(signature.batch_sizes, default=max(sizes))
    for rows in sorted(size for size in sizes if size <= most):
        for is_weighted in (False, True):
            yield {
                key: _ids(rng, feature, _vocabulary_size(manifest, key), rows, is_weighted=is_weighted)
                for key, feature in signature.features.items()
            }


def predict_cases(manifest: Manifest, signature: SignatureEntry) -> Iterator[Case]:
    """Yields cases of a predict signature: 1, 17 and 64 rows, unknown ids (row 0) and empty rows among them."""
    rng = np.random.default_rng(_SEED)
    for rows in (1, 17, 64):
        yield {
            key: _ids(rng, feature, _vocabulary_size(manifest, key), rows, is_weighted=False)
            for key, feature in signature.features.items()
        }


def _vocabulary_size(manifest: Manifest, feature: str) -> int:
    return manifest.tables[manifest.features[feature].table].vocabulary_size


def _ids(
    rng: np.random.Generator, feature: LookupFeature, vocabulary_size: int, rows: int, *, is_weighted: bool
) -> Array | RaggedIds:
    if feature.row_splits is None:
        return _with_edges(rng.integers(0, vocabulary_size, rows), vocabulary_size)
    lengths = rng.integers(0, (feature.max_ids_per_row or _LONGEST_ROW) + 1, rows)
    if rows > 2:
        lengths[[0, rows // 2, -1]] = 0
        lengths[1] = feature.max_ids_per_row or _LONGEST_ROW
    elif rows:
        lengths[0] = max(lengths[0], 2)
    values = _with_edges(rng.integers(0, vocabulary_size, int(lengths.sum())), vocabulary_size)
    row_splits = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    if not (is_weighted and feature.weights):
        return RaggedIds(values, row_splits)
    weights = rng.uniform(0.25, 2.0, len(values)).astype(np.float32)
    weights[::7] = -0.125
    filled = np.flatnonzero(lengths > 0)
    if len(filled):
        # A sum of 0.5 tells the two divisors of a mean apart.
        weights[row_splits[filled[0]] : row_splits[filled[0] + 1]] = 0.5 / lengths[filled[0]]
    if len(filled) > 1:
        weights[row_splits[filled[-1]] :] = 0
    return RaggedIds(values, row_splits, weights)


def _with_edges(values: Array, vocabulary_size: int) -> Array:
    if len(values) > 3:
        values[:4] = [vocabulary_size - 1, 0, 1 % vocabulary_size, 1 % vocabulary_size]
    return values
