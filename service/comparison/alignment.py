"""Fits the rotation between the rows of two versions of a table, and compares rows after the rotation.

Two trainings of one model find the same geometry in another coordinate system. Dot products, which the model uses, do
not change when all rows are rotated, so a rotation is no change of the model.

The mean row is subtracted first: if the rows of a table share a large mean, any two rows point the same way, and a
table whose rows were permuted would look unchanged.

Source: Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 31 (1966).
"""

from __future__ import annotations

import numpy as np

from service.types import Array


class Alignment:
    """The orthogonal Procrustes fit of pairs of rows. Concurrency: one caller at a time.

    Each pair belongs to one of two halves. The rotation for a half is fitted on the other half only: a rotation has
    D (D - 1) / 2 free numbers, and on its own rows it would make unrelated tables look alike.

    Args:
      means: the mean old and new row, [D] each, which are subtracted from the rows.
      typical: typical norms of an old and of a new row around the mean. A row with a larger norm counts as much as a
        row of that norm, so that a few broken rows do not turn the rotation.
    """

    def __init__(self, means: tuple[Array, Array], typical: tuple[float, float]) -> None:
        self._means = means
        self._typical = typical
        dim = len(means[0])
        self._sums = np.zeros((2, dim, dim))
        self._covariances = np.zeros((2, dim, dim))

    def add(self, old: Array, new: Array, halves: Array) -> None:
        """Adds pairs of an old and a new row: [n, D], finite float64. halves: [n], the half (0 or 1) of each pair."""
        weighted = [_limited(rows, norm) for rows, norm in zip(self.centred(old, new), self._typical, strict=True)]
        for place, rows in enumerate(weighted):
            self._covariances[place] += rows.T @ rows
        for half in (0, 1):
            mine = halves == half
            self._sums[half] += weighted[0][mine].T @ weighted[1][mine]

    def centred(self, old: Array, new: Array) -> tuple[Array, Array]:
        """Returns old and new rows without their tables' mean rows."""
        with np.errstate(invalid="ignore", over="ignore"):
            return old - self._means[0], new - self._means[1]

    def directions(self) -> tuple[float, float]:
        """Returns the effective number of dimensions of the old and of the new rows around their mean.

        >>> fit = Alignment((np.zeros(2), np.zeros(2)), (1.0, 1.0))
        >>> fit.add(np.eye(2), np.array([[1.0, 0.0], [-1.0, 0.0]]), np.arange(2))
        >>> [round(number, 3) for number in fit.directions()]
        [2.0, 1.0]
        """
        old, new = (_effective(np.linalg.eigvalsh(covariance)) for covariance in self._covariances)
        return old, new

    def rotations(self) -> Array:
        """Returns, for each half of the pairs, the matrix R that brings `old @ R` nearest to `new` in the other half.

        >>> fit = Alignment((np.zeros(2), np.zeros(2)), (1.0, 1.0))
        >>> old = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> for half in (0, 1): fit.add(old, old @ np.array([[0.0, 1.0], [-1.0, 0.0]]), np.full(2, half))
        >>> (fit.rotations()[0] + 0.0).round(6).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
        """
        found = np.empty_like(self._sums)
        for half in (0, 1):
            left, _, right = np.linalg.svd(self._sums[1 - half])
            found[half] = left @ right
        return found


def cosines(old: Array, new: Array) -> Array:
    """Returns the [n] cosines of pairs of rows [n, D]: 1 where both rows are zero or equal, 0 where one row is zero.

    NaN where one row holds a number that is not finite and the rows differ.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.einsum("ij,ij->i", old, new)
        lengths = norms(old) * norms(new)
        found = np.divide(products, lengths, out=np.zeros(len(old)), where=lengths > 0)
        found[~np.isfinite(lengths)] = np.nan
    return np.clip(np.where(_same(old, new), 1.0, found), -1.0, 1.0)


def norms(rows: Array) -> Array:
    """Returns the [n] Euclidean norms of rows [n, D]."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return found


def _same(before: Array, after: Array) -> Array:
    same: Array = ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
    return same


def _effective(variances: Array) -> float:
    shares = np.clip(variances, 0, None)
    shares = shares[shares > 0] / shares.sum() if shares.sum() > 0 else np.ones(1)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _limited(rows: Array, norm: float) -> Array:
    lengths = norms(rows)
    return rows * np.divide(norm, lengths, out=np.ones(len(rows)), where=lengths > norm)[:, None]
