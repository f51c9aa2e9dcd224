"""Reads rows of embedding tables from the files of a SavedModel, and adds rows up in the order of a manifest.

All arithmetic is float32, with denormal numbers as artifact.stored_tables has them.

Source: `_ragged_embedding_lookup_with_reduce` of python/tpu/tpu_embedding_for_serving.py and
`sparse_embedding_aggregate_slice` of python/tpu/feature_column_v2.py (combiners), `clip_by_norm` of
python/ops/clip_ops.py (max_norm); orders of additions: SparseSegmentReductionOpBase::Reduce of
core/kernels/segment_reduction_ops_impl.h (blocks_of_8), and of Eigen's TensorReduction.h InnerMostDimPreserver, as
SegmentSum uses it (four_lanes), and InnerMostDimReducer (norms), with the packets of eight numbers of TensorFlow's
wheels for x86-64. TensorFlow 2.21.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from service.artifact.manifest import Manifest, Summation, TableEntry, TableScale
from service.artifact.stored_tables import (
    SavedTables,
    check_files,
    float32_rows,
    flushed,
    product,
    stored_shape,
    table_info,
)
from service.errors import ArtifactError
from service.types import TABLE_DTYPES, Array, TableInfo

# Columns that one SIMD instruction adds, and the fewest ids of a row whose vectors the order four_lanes adds in lanes.
_PACKET, _LEAST_FOR_LANES = 8, 16
# Numbers that Eigen adds up without halving them.
_LEAF = 1024 * _PACKET
# Largest sum of ones in float32: from 2**24 on, adding 1 does not change the sum.
_MOST_ONES = 1 << 24


class Table(NamedTuple):
    """An embedding table in a mapped file. Concurrency: any thread.

    stored: [V, columns] numbers as the file has them. scales: [V, 1] float32; None: the table has no scales.
    """

    info: TableInfo
    stored: Array
    scales: Array | None

    def rows(self, ids: Array) -> Array:
        """Reads the rows of [N] ids as [N, D] float32; the caller has checked the ids."""
        scales = None if self.scales is None else self.scales[ids]
        return float32_rows(self.stored[ids], scales, self.info.dtype, self.info.embedding_dim)

    def stored_rows(self, ids: Array) -> Array:
        """Reads the rows of [N] ids in the table's own dtype: float16, bfloat16 or float64."""
        found: Array = self.stored[ids]
        return found.view(np.dtype("bfloat16")) if self.info.dtype == "bfloat16" else found


def open_tables(artifact: Path, manifest: Manifest) -> dict[str, Table]:
    """Maps the tables of an artifact; raises ArtifactError where manifest, checkpoint index and files differ."""
    check_files(artifact, manifest)
    saved = SavedTables(artifact)

    def view(what: str, entry: TableEntry | TableScale, dtype: str, shape: tuple[int, ...]) -> Array:
        file = saved.file(what, entry, dtype, shape)
        try:
            return np.memmap(file, TABLE_DTYPES[dtype], "r", entry.offset, shape)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot map {file}: {error}") from error

    tables = {}
    for name, entry in manifest.tables.items():
        stored, scales = view(f"table {name!r}", entry, entry.dtype, stored_shape(name, entry)), None
        if entry.scale is not None:
            scales = view(f"scale of table {name!r}", entry.scale, "float32", (entry.vocabulary_size,))[:, None]
        nbytes = stored.nbytes + (scales.nbytes if scales is not None else 0)
        tables[name] = Table(table_info(manifest, name, nbytes), stored, scales)
    return tables


def bounded(vectors: Array, max_norm: float | None) -> Array:
    """Scales those of [N, D] float32 vectors down to max_norm that have a larger norm.

    >>> bounded(np.array([[3, 4], [0.3, 0.4]], np.float32), 1.0).round(6).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
    """
    if max_norm is None:
        return vectors
    bound = np.float32(max_norm)
    norms = np.sqrt(_sums_of_packets(product(vectors, vectors)))[:, None]
    # Unlike np.maximum's order of operands, the comparison says that a norm of NaN stays.
    return flushed(product(vectors, bound) / np.where(norms < bound, bound, norms))


def _sums_of_packets(numbers: Array, first: int = 0) -> Array:
    """Adds up each row of [N, D] positive float32 numbers in the order of Eigen's InnerMostDimReducer.

    Four packets of eight numbers are added at a time, to four sums. A row of more than 1024 packets is halved.

    Args:
      first: position of the first column in the whole row.
    """
    count = numbers.shape[1]
    if count > _LEAF:
        middle = first + (count + 1) // 2
        split = min((middle + _PACKET - 1) // _PACKET * _PACKET - first, count)
        return _sums_of_packets(numbers[:, :split], first) + _sums_of_packets(numbers[:, split:], first + split)
    packed = count // _PACKET
    packets = numbers[:, : packed * _PACKET].reshape(len(numbers), packed, _PACKET)
    sums = np.zeros((len(numbers), 4, _PACKET), np.float32)
    for k in range(packed // 4):
        sums += packets[:, 4 * k : 4 * k + 4]
    total = sums[:, 0]
    for more in (sums[:, 1:], packets[:, packed // 4 * 4 :]):
        for k in range(more.shape[1]):
            total = total + more[:, k]
    rest = np.zeros(len(numbers), np.float32)
    for column in range(packed * _PACKET, count):
        rest = rest + numbers[:, column]
    halves = total[:, :4] + total[:, 4:]
    found: Array = rest + ((halves[:, 0] + halves[:, 2]) + (halves[:, 1] + halves[:, 3]))
    return found


def combined(
    vectors: Array,
    lengths: Array,
    weights: Array | None,
    *,
    combiner: str,
    summation: Summation,
    at_least_one: bool,
) -> Array:
    """Combines the vectors of each row by "sum", "mean" or "sqrtn"; a row without vectors gives zeros.

    Args:
      vectors: [N, D] float32, of all rows one behind the other.
      lengths: [B] int64, number of vectors of each row.
      weights: [N] float32, one for each vector; None: all are 1.
      at_least_one: a mean divides by at least 1.

    Returns:
      [B, D] float32.

    >>> combined(np.float32([[1, 2], [3, 4]]), np.array([2, 0]), None,
    ...          combiner="mean", summation="in_order", at_least_one=False).tolist()
    [[2.0, 3.0], [0.0, 0.0]]
    """
    with np.errstate(all="ignore"):
        if weights is None:
            terms = vectors
            ones = lengths if summation == "in_order" else np.minimum(lengths, _MOST_ONES)
            totals = squares = ones[:, None].astype(np.float32)
        else:
            factors = weights[:, None]
            terms = product(vectors, factors)
            totals = _sums_in_order(factors, lengths)
            squares = _sums_in_order(product(factors, factors), lengths)
        sums = _sums(terms, lengths, summation)
        if combiner != "sum":
            divisors = np.sqrt(squares) if combiner == "sqrtn" else np.maximum(totals, 1) if at_least_one else totals
            quotients = flushed(sums / divisors)
            if summation == "blocks_of_8":
                quotients = np.where(totals < 10, product(sums, np.float32(1) / divisors), quotients)
            sums = np.where(divisors == 0, np.float32(0), quotients)
        if summation != "in_order" and weights is None:
            # TensorFlow's ops copy the vector of a row with one id.
            alone = np.flatnonzero(lengths == 1)
            sums[alone] = vectors[(np.cumsum(lengths) - lengths)[alone]]
    return sums


def places(lengths: Array) -> tuple[Array, Array]:
    """Returns two [N] arrays for rows of given lengths: of each id, the number of its row and its position there.

    >>> [one.tolist() for one in places(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    of_row = np.repeat(np.arange(lengths.size), lengths)
    return of_row, np.arange(of_row.size) - (np.cumsum(lengths) - lengths)[of_row]


def _sums(terms: Array, lengths: Array, summation: Summation) -> Array:
    """Returns the sum of each row's vectors, in one of the four orders of a manifest's `summation`.

    blocks_of_8: the sum of sums of eight terms; the first of these has the n % 8 terms that remain, and eight more if
      that is 0 or 1. four_lanes: from 16 terms on, the sum of four lanes and of the remaining terms; columns that fill
      no packet are added in order. segment_mean: in order.
    """
    # TensorFlow's op for blocks_of_8 never adds to zeros; those for four_lanes and segment_mean do in rows of more ids.
    from_zero = np.full(lengths.shape, True) if summation == "in_order" else lengths != 1
    if summation == "blocks_of_8":
        from_zero = np.full(lengths.shape, False)
    if summation in ("in_order", "segment_mean"):
        return _sums_in_order(terms, lengths, from_zero)
    of_row, place = places(lengths)
    if summation == "blocks_of_8":
        rest = lengths % 8
        first = np.where(rest < 2, rest + 8, rest)[of_row]
        group = np.maximum(place - first + 8, 0) // 8
    else:
        in_lanes = lengths[of_row] // 4 * 4
        group = np.where(place < in_lanes, place % 4, 4 + place - in_lanes)
        group[lengths[of_row] < _LEAST_FOR_LANES] = 0
    by_group = np.lexsort((place, group, of_row))
    is_first = np.diff(of_row[by_group], prepend=-1).astype(bool) | np.diff(group[by_group], prepend=-1).astype(bool)
    sizes = np.diff(np.flatnonzero(is_first), append=of_row.size)
    row_of_group = of_row[by_group][is_first]
    # The terms behind the lanes are added as they are: from zero, a -0.0 would be 0.0.
    is_from_zero = from_zero[row_of_group] & (group[by_group][is_first] < 4)
    groups = _sums_in_order(terms[by_group], sizes, is_from_zero)
    num_groups = np.bincount(row_of_group, minlength=lengths.size)
    found = _sums_in_order(groups, num_groups, np.full(lengths.shape, False))
    packed = terms.shape[1] // _PACKET * _PACKET
    if summation == "four_lanes" and packed < terms.shape[1]:
        found[:, packed:] = _sums_in_order(terms, lengths, from_zero)[:, packed:]
    return found


def _sums_in_order(terms: Array, lengths: Array, from_zero: Array | None = None) -> Array:
    """Returns the float32 sum of each row's vectors, added one by one in their order, unlike numpy's sum.

    Args:
      from_zero: [B] bool, whether a row's first vector is added to zeros, which turns -0.0 into 0.0; None: all are.
    """
    begins = np.cumsum(lengths) - lengths
    sums = np.full((lengths.size, terms.shape[1]), -0.0, np.float32)
    sums[(lengths == 0) | (True if from_zero is None else from_zero)] = 0
    for k in range(lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > k)
        sums[longer] = flushed(sums[longer] + flushed(terms[begins[longer] + k]))
    return sums
