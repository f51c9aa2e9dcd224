"""Projects a sample of a table's rows to two dimensions, along the directions in which the sample varies most.

>>> import numpy as np
>>> line = project(np.array([[i, 2 * i] for i in range(5)], np.float32), np.arange(5))
>>> [round(share, 6) for share in line.explained], line.points[0] != line.points[4]
([1.0, 0.0], True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.types import Array

MAX_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Projection:
    """The coordinates of a sample of rows on the sample's first two principal components.

    ids: row number of each point; points: two coordinates of each point.
    explained: share of the sample's variance along each of the two axes.
    labels: label of each point, by which it is coloured, None for a row without one; () if no row has a label.
    names: name of each row, such as its key; "" for a row without a name.
    label_title: what the labels mean, such as the name of their column.
    nearest: for each searched point, its nearest rows in the whole table, as pairs of row and cosine.
    nearest_names: names of the rows in `nearest` that are not among the points.
    agreement: share of labelled points whose nearest neighbour in the table (cosine) has the same label; chance: the
        same share for random neighbours. None without labels.
    """

    ids: tuple[int, ...]
    points: tuple[tuple[float, float], ...]
    explained: tuple[float, float]
    labels: tuple[str | None, ...] = ()
    names: tuple[str, ...] = ()
    label_title: str = ""
    nearest: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    nearest_names: Mapping[int, str] = field(default_factory=dict)
    agreement: float | None = None
    chance: float | None = None


def sample_ids(num_rows: int, *, seed: int, candidates: Array | None = None, limit: int = MAX_POINTS) -> Array:
    """Draws at most `limit` distinct row ids; returns them in ascending order.

    Args:
      candidates: [N] distinct ids to draw from; None: all rows.
    """
    total = num_rows if candidates is None else len(candidates)
    if total <= limit:
        chosen = np.arange(total)
    else:
        chosen = np.random.default_rng(seed).choice(total, limit, replace=False, shuffle=False)
    return np.sort(chosen if candidates is None else np.asarray(candidates)[chosen])


def project(rows: Array, ids: Array) -> Projection:
    """Projects [N, D] rows of a table on the first two principal components of these N rows.

    Args:
      rows: [N, D] of a float type; rows that are not finite are left out.
      ids: [N] row numbers.

    Returns the points in the order of ids. The sign of an axis makes its largest weight positive, so the same rows
    always give the same picture. With fewer than two rows, or D = 1, an axis is all 0.
    """
    finite = np.isfinite(rows).all(axis=1)
    values = rows[finite].astype(np.float64)
    ids = ids[finite]
    points = np.zeros((len(values), 2))
    explained = np.zeros(2)
    if len(values) > 1:
        centred = values - values.mean(axis=0)
        _, singular, axes = np.linalg.svd(centred, full_matrices=False)
        axes = axes[:2]
        strongest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
        axes = axes * np.where(strongest < 0, -1.0, 1.0)[:, None]
        points[:, : len(axes)] = centred @ axes.T
        variance = singular**2
        if variance.sum() > 0:
            explained[: len(axes)] = (variance / variance.sum())[:2]
    return Projection(
        ids=tuple(ids.tolist()),
        points=tuple((x, y) for x, y in points.tolist()),
        explained=(float(explained[0]), float(explained[1])),
    )


def label_agreement(rows: Array, labels: Sequence[str | None]) -> tuple[float, float] | None:
    """Returns the share of rows whose nearest neighbour has their label, and the share expected of random neighbours.

    Args:
      rows: [N, D] finite numbers; labels: one per row; rows labelled None are left out.

    Returns: (share, chance), or None for fewer than two labelled rows.
    """
    kept = np.array([i for i, label in enumerate(labels) if label is not None], np.int64)
    if len(kept) < 2:
        return None
    _, codes, counts = np.unique([str(labels[i]) for i in kept], return_inverse=True, return_counts=True)
    vectors = rows[kept].astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(lengths > 0, lengths, 1.0)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    share = float((codes[likeness.argmax(axis=1)] == codes).mean())
    pairs = len(kept) * (len(kept) - 1)
    return share, float((counts * (counts - 1)).sum() / pairs)
