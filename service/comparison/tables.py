"""Pairs the rows of one table in two versions, and compares them in chunks: memory does not grow with the table.

Two trainings of one model find the same geometry in another coordinate system. Dot products, which the model uses, do
not change when all rows are rotated, so a rotation is no change of the model: rows are compared after it, too. The mean
row is subtracted first: if the rows of a table share a large mean, any two rows point the same way, and a table whose
rows were permuted would look unchanged.

Source: Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 31 (1966).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from service.artifact.row_labels import NO_LABELS, RowLabels
from service.comparison.document import DRIFTED_COSINE, MAX_ROW_FACTOR, Drift, DriftedRow, Histogram, Neighbours, Rows
from service.types import Array, Table


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


NO_ROW = -1


class KeyedRows(Protocol):
    """A vocabulary: the keys of the rows of a table. Concurrency: any thread.

    has_keys: False if all keys are hashed. lines: the rows of the keys in the vocabulary's file.
    """

    @property
    def key_dtype(self) -> Literal["string", "int64"]: ...

    @property
    def has_keys(self) -> bool: ...

    @property
    def lines(self) -> range: ...

    def keys_at(self, ids: Array) -> Array:
        """Returns the keys of [N] row ids in `lines`: int64, or an object array of bytes."""

    def rows_of(self, keys: Array) -> Array:
        """Returns the [N] int64 row ids in `lines` of [N] keys; NO_ROW for a key that is not in the file."""

    def key_of(self, row: int) -> bytes | int | None: ...


class Matching(Protocol):
    """Pairs the rows of a table's old version with the same rows of its new version. Concurrency: any thread.

    old, new: the ids of the rows that can be paired, in each version.
    """

    @property
    def old(self) -> range: ...

    @property
    def new(self) -> range: ...

    def new_ids(self, old_ids: Array) -> Array:
        """Returns the [n] int64 ids in the new version of [n] ids in `old`; NO_ROW for a row that is gone."""

    def old_ids(self, new_ids: Array) -> Array:
        """Returns the [n] int64 ids in the old version of [n] ids in `new`; NO_ROW for a row that is added."""

    def name(self, id: int, *, is_new: bool) -> str:
        """Returns the key of a row as text, or its id and label if rows are paired by ids."""


@dataclass(frozen=True, slots=True)
class ById:
    """The Matching (pairs of rows) of tables without a common vocabulary: equal ids make a pair.

    labels: what people call the rows of the old version, and of the new one.
    """

    old: range
    new: range
    labels: tuple[RowLabels, RowLabels] = (NO_LABELS, NO_LABELS)

    def new_ids(self, old_ids: Array) -> Array:
        return np.where(old_ids < self.new.stop, old_ids, NO_ROW)

    def old_ids(self, new_ids: Array) -> Array:
        return np.where(new_ids < self.old.stop, new_ids, NO_ROW)

    def name(self, id: int, *, is_new: bool) -> str:
        (label,) = self.labels[is_new].of([id])
        return str(id) if label is None else f"{id} {label}"


class ByKey:
    """The Matching (pairs of rows) of tables whose vocabularies have keys of one type: equal keys make a pair."""

    def __init__(self, old: KeyedRows, new: KeyedRows) -> None:
        self._old, self._new = old, new
        self.old, self.new = old.lines, new.lines

    def new_ids(self, old_ids: Array) -> Array:
        return self._new.rows_of(self._old.keys_at(old_ids))

    def old_ids(self, new_ids: Array) -> Array:
        return self._old.rows_of(self._new.keys_at(new_ids))

    def name(self, id: int, *, is_new: bool) -> str:
        key = (self._new if is_new else self._old).key_of(id)
        return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def can_match(old: KeyedRows, new: KeyedRows) -> bool:
    """Says whether two vocabularies have keys of one type; hashed vocabularies have no keys."""
    return old.key_dtype == new.key_dtype and old.has_keys and new.has_keys


NUM_NEIGHBOURS = 10
# Two versions of a table are aligned by a rotation only if they share this many rows per dimension: a rotation of fewer
# rows would fit noise.
ROWS_PER_DIM = 4
_FIRST = 10
_IDS_AT_A_TIME = 1 << 16
_CHUNK_BYTES = 4 << 20
_NUM_TYPICAL = 4096
# Rows with a norm above this many medians do not count in the mean row.
_USUAL_NORM = 4.0
_COSINE_EDGES = np.round(np.linspace(-1, 1, 21), 1)
# Edges of the bins for norm ratios, from 1/8 to 8: four bins for each doubling, and a ratio of 1 is in the middle of
# its bin.
_RATIO_EDGES = 2.0 ** (np.arange(-12.5, 13) / 4)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the work that a comparison of two versions may do.

    rows: most rows of a table that are compared, drawn at random from a larger table.
    queries: most rows whose neighbours are searched. pool: most rows among which they are searched.
    """

    rows: int = 100_000
    queries: int = 200
    pool: int = 50_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RowPairs:
    """The result of pairing the rows of two versions of a table: numbers of rows, and the ids of the pairs to compare.

    added, removed, moved: as in TableDiff. common: number of rows in both versions.
    old_ids, new_ids: [n] int64, ids of the rows to compare in both versions, by ascending old id.
    """

    added: Rows
    removed: Rows
    moved: Rows
    common: int
    old_ids: Array
    new_ids: Array


def pair_rows(matching: Matching, budget: Budget) -> RowPairs:
    """Counts the rows that a table's new version adds, removes or moves, and draws at random the rows to compare."""
    removed, moved, common = _Found(matching, is_new=False), _Found(matching, is_new=True), 0
    for ids in _id_chunks(matching.old):
        found = matching.new_ids(ids)
        removed.add(ids[found == NO_ROW])
        kept = found[found != NO_ROW]
        common += len(kept)
        moved.add(kept[kept != ids[found != NO_ROW]])
    added = _Found(matching, is_new=True)
    for ids in _id_chunks(matching.new):
        added.add(ids[matching.old_ids(ids) == NO_ROW])
    old_ids = _drawn(matching.old, budget.rows, np.random.default_rng(budget.seed))
    new_ids = matching.new_ids(old_ids)
    is_common = new_ids != NO_ROW
    return RowPairs(added.rows(), removed.rows(), moved.rows(), common, old_ids[is_common], new_ids[is_common])


def drift_of(old: Table, new: Table, pairs: RowPairs, matching: Matching) -> Drift:
    """Returns how much the vectors of the paired rows differ between two versions of a table with the same D."""
    count = len(pairs.old_ids)
    fit = _fit(old, new, pairs.old_ids, pairs.new_ids)
    aligned, unaligned, ratios = np.empty(count), np.empty(count), np.empty(count)
    equal = 0
    for part, before, after in _chunks(old, new, pairs.old_ids, pairs.new_ids):
        unaligned[part] = cosines(before, after)
        aligned[part] = _aligned_cosines(part, before, after, fit)
        equal += int(_same(before, after).sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            # Two rows of zeros have the ratio 1.
            ratios[part] = np.where(_same(before, after), 1.0, norms(after) / norms(before))
    usual = ratios[np.isfinite(ratios) & (ratios > 0)]
    middle = float(np.median(usual)) if len(usual) else None
    with np.errstate(invalid="ignore"):
        is_usual = (ratios <= MAX_ROW_FACTOR * (middle or 1.0)) & (ratios >= (middle or 1.0) / MAX_ROW_FACTOR)
    is_drifted = ~(aligned >= DRIFTED_COSINE)
    order = np.lexsort((pairs.old_ids, np.where(np.isnan(aligned), -2.0, aligned)))[:_FIRST]
    worst = [at for at in order.tolist() if is_drifted[at]]
    drifted = int(is_drifted.sum())
    return Drift(
        rows=count,
        is_aligned=fit.rotations is not None,
        cosines=_histogram(aligned[np.isfinite(aligned)], _COSINE_EDGES),
        norm_ratios=_histogram(usual, _RATIO_EDGES),
        median_cosine=_median(aligned),
        median_unaligned_cosine=_median(unaligned),
        median_norm_ratio=middle,
        outlying=int((~is_usual).sum()),
        directions=fit.directions,
        equal=equal,
        drifted=drifted,
        percent=100.0 * drifted / count if count else 0.0,
        worst=tuple(_drifted_row(pairs, matching, at, float(aligned[at])) for at in worst),
    )


def row_cosines(old: Table, new: Table, matching: Matching, new_ids: Array) -> tuple[Array, bool]:
    """Returns the cosine of each given row's vectors in two versions of a table, after a rotation as in drift_of.

    Args:
      new_ids: [n] int64 ids of the new table.

    Returns:
      [n] float64 cosines between each row and the same row in the old table; NaN for a row that the old table lacks, or
      that has no direction. Second: whether a rotation between the versions was undone first.
    """
    old_ids = np.full(len(new_ids), NO_ROW, np.int64)
    may_match = (new_ids >= matching.new.start) & (new_ids < matching.new.stop)
    old_ids[may_match] = matching.old_ids(new_ids[may_match])
    places = np.flatnonzero(old_ids != NO_ROW)
    places = places[np.argsort(old_ids[places], kind="stable")]
    before_ids, after_ids = old_ids[places], new_ids[places]
    fit = _fit(old, new, before_ids, after_ids)
    found = np.full(len(new_ids), np.nan)
    for part, before, after in _chunks(old, new, before_ids, after_ids):
        found[places[part]] = _aligned_cosines(part, before, after, fit)
    return found, fit.rotations is not None


def neighbours_of(
    old: Table, new: Table, pairs: RowPairs, matching: Matching, budget: Budget, hottest: Array | None
) -> Neighbours | None:
    """Compares the nearest neighbours of some rows in both versions of a table; returns None for under 20 common rows.

    Args:
      hottest: [n] int64 ids of the old version's hottest rows, the hottest first; None: a sample of rows is taken.
    """
    generator = np.random.default_rng(budget.seed + 1)
    kept = _drawn(range(len(pairs.old_ids)), budget.pool, generator)
    pool_old, pool_new = pairs.old_ids[kept], pairs.new_ids[kept]
    if len(pool_old) < 2 * NUM_NEIGHBOURS:
        return None
    if hottest is not None:
        hottest = hottest[(hottest >= matching.old.start) & (hottest < matching.old.stop)]
        query_old, query_new = hottest, matching.new_ids(hottest)
        query_old, query_new = (ids[query_new != NO_ROW][: budget.queries] for ids in (query_old, query_new))
    if hottest is None or not len(query_old):
        hottest = None
        chosen = _drawn(range(len(pool_old)), budget.queries, generator)
        query_old, query_new = pool_old[chosen], pool_new[chosen]
    before = _nearest(old, query_old, pool_old)
    after = _nearest(new, query_new, pool_new)
    shares = [len(np.intersect1d(*both)) / NUM_NEIGHBOURS for both in zip(before, after, strict=True)]
    return Neighbours(
        k=NUM_NEIGHBOURS,
        queries=len(query_old),
        is_hottest=hottest is not None,
        pool=len(pool_old),
        overlap=float(np.mean(shares)),
        chance=NUM_NEIGHBOURS / (len(pool_old) - 1),
    )


class _Found:
    """A counter of the rows that are passed to add(), which keeps the names (keys or ids) of the first ten rows."""

    def __init__(self, matching: Matching, *, is_new: bool) -> None:
        self._matching, self._is_new = matching, is_new
        self._count = 0
        self._first: list[str] = []

    def add(self, ids: Array) -> None:
        self._count += len(ids)
        wanted = ids[: _FIRST - len(self._first)].tolist()
        self._first += [self._matching.name(id, is_new=self._is_new) for id in wanted]

    def rows(self) -> Rows:
        return Rows(self._count, tuple(self._first))


class _Fit(NamedTuple):
    """How two versions of a table are compared.

    means: the mean old and new row, subtracted from the rows; zeros without rotations. rotations: as Alignment has
      them; None if there are too few pairs. directions: as in Drift.
    """

    means: tuple[Array, Array]
    rotations: Array | None
    directions: tuple[float, float]


def _fit(old: Table, new: Table, old_ids: Array, new_ids: Array) -> _Fit:
    nothing = np.zeros(old.info.embedding_dim)
    if len(old_ids) < ROWS_PER_DIM * old.info.embedding_dim:
        return _Fit((nothing, nothing), None, (1.0, 1.0))
    sample = slice(None, None, max(1, len(old_ids) // _NUM_TYPICAL))
    samples = [table.rows(ids[sample]).astype(np.float64) for table, ids in ((old, old_ids), (new, new_ids))]
    # Broken rows would move the mean. The norms decide which rows are left out, so that a rotation changes nothing.
    lengths = [norms(rows) for rows in samples]
    usual = np.all([(one > 0) & (one <= _USUAL_NORM * _typical_norm(one)) for one in lengths], axis=0)
    # Where most rows are equal, the versions share their coordinates, so a changed row must not move one mean alone.
    unchanged = usual & _same(*samples)
    counted = unchanged if 2 * unchanged.sum() > usual.sum() else usual
    means = [rows[counted].mean(axis=0) if counted.any() else nothing for rows in samples]
    typical = [_typical_norm(norms(rows - mean)) for rows, mean in zip(samples, means, strict=True)]
    fit = Alignment((means[0], means[1]), (typical[0], typical[1]))
    for part, before, after in _chunks(old, new, old_ids, new_ids):
        usable = np.isfinite(norms(before)) & np.isfinite(norms(after))
        fit.add(before[usable], after[usable], _halves(part)[usable])
    return _Fit((means[0], means[1]), fit.rotations(), fit.directions())


def _aligned_cosines(part: slice, before: Array, after: Array, fit: _Fit) -> Array:
    if fit.rotations is None:
        return cosines(before, after)
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = before - fit.means[0], after - fit.means[1]
        turned = np.where(_halves(part)[:, None] == 0, old @ fit.rotations[0], old @ fit.rotations[1])
        found = cosines(turned, new)
    # A row of zeros or NaN has no direction that a rotation could change: if it is the same in both versions, its
    # cosine counts as 1.
    lengths = norms(before)
    found[_same(before, after) & ~(np.isfinite(lengths) & (lengths > 0))] = 1.0
    return found


def _typical_norm(lengths: Array) -> float:
    lengths = lengths[np.isfinite(lengths) & (lengths > 0)]
    return float(np.median(lengths)) if len(lengths) else 1.0


def _halves(part: slice) -> Array:
    # Returns 0 and 1 in turn for the pairs of rows: the half of the pairs to which each belongs. The rotation for one
    # half is fitted to the other half.
    return np.arange(part.start, part.stop) % 2


def _chunks(old: Table, new: Table, old_ids: Array, new_ids: Array) -> Iterator[tuple[slice, Array, Array]]:
    step = max(1, _CHUNK_BYTES // (8 * old.info.embedding_dim))
    for begin in range(0, len(old_ids), step):
        part = slice(begin, min(begin + step, len(old_ids)))
        yield part, old.rows(old_ids[part]).astype(np.float64), new.rows(new_ids[part]).astype(np.float64)


def _nearest(table: Table, queries: Array, pool: Array) -> Array:
    """Returns [n, k] positions in `pool`: for each query row, the k nearest other rows of the pool by cosine."""
    wanted = _unit(table.rows(queries))
    best_score = np.full((len(queries), 0), -np.inf, np.float32)
    best = np.empty((len(queries), 0), np.int64)
    step = max(NUM_NEIGHBOURS, _CHUNK_BYTES // (4 * max(table.info.embedding_dim, len(queries))))
    for begin in range(0, len(pool), step):
        ids = pool[begin : begin + step]
        scores = wanted @ _unit(table.rows(ids)).T
        scores[queries[:, None] == ids[None, :]] = -np.inf
        positions = np.broadcast_to(np.arange(begin, begin + len(ids)), scores.shape)
        best_score = np.concatenate([best_score, scores], axis=1)
        best = np.concatenate([best, positions], axis=1)
        if best.shape[1] > NUM_NEIGHBOURS:
            kept = np.argpartition(-best_score, NUM_NEIGHBOURS - 1, axis=1)[:, :NUM_NEIGHBOURS]
            best_score = np.take_along_axis(best_score, kept, axis=1)
            best = np.take_along_axis(best, kept, axis=1)
    return best


def _unit(rows: Array) -> Array:
    # _unit() returns zeros for a row of zeros and for a row with NaN or infinity: its cosine with any other row is then
    # 0.
    lengths = norms(rows.astype(np.float64))[:, None]
    usable = np.isfinite(lengths) & (lengths > 0)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=np.broadcast_to(usable, rows.shape))


def _drawn(rows: range, limit: int, generator: np.random.Generator) -> Array:
    if len(rows) <= limit:
        return np.arange(rows.start, rows.stop, dtype=np.int64)
    return np.sort(generator.choice(len(rows), limit, replace=False, shuffle=False)) + rows.start


def _id_chunks(rows: range) -> Iterator[Array]:
    for begin in range(rows.start, rows.stop, _IDS_AT_A_TIME):
        yield np.arange(begin, min(begin + _IDS_AT_A_TIME, rows.stop), dtype=np.int64)


def _histogram(values: Array, edges: Array) -> Histogram:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))


def _median(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _drifted_row(pairs: RowPairs, matching: Matching, at: int, cosine: float) -> DriftedRow:
    old_id, new_id = int(pairs.old_ids[at]), int(pairs.new_ids[at])
    return DriftedRow(matching.name(old_id, is_new=False), old_id, new_id, cosine if np.isfinite(cosine) else None)
