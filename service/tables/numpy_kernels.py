"""Implements the kernels gather, combine and sequence in numpy, for tests and for servers without the native core.

A table is given by five arguments: its dtype (FLOAT32, FLOAT16, BFLOAT16, INT8, INT4), its bytes (uint8, perhaps
unaligned: a checkpoint packs tensors back to back), the bytes of its [V] float32 scales if it is INT8 or INT4 (else
none), V, and D. All numbers are converted to float32 first, those of INT8 and INT4 times the scale
of their row, and are added up in float32 in the order of the ids. As on TensorFlow's threads, arithmetic takes
denormal numbers for zeros, and makes zeros in their place; copies keep them.

Each kernel writes the first D numbers of each row of out. It returns OK; or the position of the first id that is
refused; or TOO_MANY - r if row r is too long; or MISSING - n if n ids have no row and the policy accepts that. The
caller has checked that row_splits never decrease and lie within the ids.

A row of ids is cut at its limit first, and ids behind the limit are never checked. Then an id is compared with the size
of the table, then its weight with 0.

Source: the arithmetic is TensorFlow 2.21's, `_ragged_embedding_lookup_with_reduce` of
python/tpu/tpu_embedding_for_serving.py (device cpu) and `sparse_embedding_aggregate_slice` of
python/tpu/feature_column_v2.py (device tpu_tensor_core); pruning is `safe_embedding_lookup_sparse` of
python/ops/embedding_ops.py, sequences are `_embedding_lookup_for_sparse_tensor` of the first. Orders of additions:
SparseSegmentReductionOpBase::Reduce of core/kernels/segment_reduction_ops_impl.h (blocks), and the packets of
InnerMostDimPreserver in Eigen's TensorReduction.h, as SegmentSum uses it (lanes).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.tables.kernel_codes import (
    BFLOAT16,
    BLOCKS_OF_8,
    CLAMP,
    DEFAULT_ROW,
    DROP,
    DROP_NEGATIVE,
    FOUR_LANES,
    IN_ORDER,
    INT4,
    MISSING,
    OK,
    SEGMENT_MEAN,
    SQRTN,
    SUM,
    TOO_MANY,
    WRAP,
)
from service.types import Array

# Special row numbers of ids without a row. NO_ROW: the id is dropped; without a combiner it reads zeros. REFUSED: the
# request is refused.
NO_ROW, REFUSED = -1, -2

# numpy dtypes of stored rows, in the order of the table dtypes' numbers; a byte of INT4 has two numbers.
_STORED = (np.float32, np.float16, np.uint16, np.int8, np.int8)
# Mask of the bits in a kernel's argument `combiner` that hold SUM, MEAN or SQRTN; the other bits hold the order of
# additions.
_COMBINER_BITS = 3
# Largest sum of ones in float32: from 2**24 on, adding 1 does not change the sum.
_MOST_ONES = 1 << 24
# _PACKET: number of columns that one SIMD instruction adds. _LEAST_FOR_LANES: smallest number of ids in a row whose
# vectors the order FOUR_LANES adds in four lanes; vectors of shorter rows are added one by one.
_PACKET, _LEAST_FOR_LANES = 8, 16

# Smallest positive float32 that is no denormal number.
_LEAST_NORMAL = np.finfo(np.float32).smallest_normal

# Type of a function that takes the positions of N ids and returns their vectors, [N, D] float32, which _sums() adds up
# for each row.
_Terms = Callable[[Array], Array]


class StoredRows:
    """A table as a kernel gets it."""

    _stored: Array

    def __init__(self, dtype: int, stored: Array, scales: Array, vocabulary_size: int, dim: int) -> None:
        self._dtype, self._dim = dtype, dim
        columns = (dim + 1) // 2 if dtype == INT4 else dim
        num_bytes = vocabulary_size * columns * np.dtype(_STORED[dtype]).itemsize
        self._stored = stored[:num_bytes].view(_STORED[dtype]).reshape(vocabulary_size, columns)
        self._scales = scales.view(np.float32)[:, None] if scales.size else None

    def rows(self, numbers: Array) -> Array:
        """Reads the table's rows with the given [N] row numbers; returns [N, D] float32."""
        stored = self._stored[numbers]
        if self._dtype == BFLOAT16:
            # A stored bfloat16 is shifted by 16 bits, because it is the upper half of a float32.
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if self._dtype == INT4:
            # A byte's low half is the number of an even column; shifting it left and back right extends its sign.
            pairs = np.stack([stored << 4 >> 4, stored >> 4], axis=2)
            stored = pairs.reshape(len(numbers), 2 * stored.shape[1])[:, : self._dim]
        found: Array = stored.astype(np.float32)
        return found if self._scales is None else product(found, self._scales[numbers])


def flushed(numbers: Array | np.float32) -> Array:
    """Returns float32 numbers with zeros of the same sign in place of denormal numbers.

    >>> flushed(np.array([1e-39, -1e-39, 1.5], np.float32)).tolist()
    [0.0, -0.0, 1.5]
    """
    return np.where(np.abs(numbers) < _LEAST_NORMAL, np.copysign(np.float32(0), numbers), numbers)


def product(numbers: Array, factors: Array | np.float32) -> Array:
    """Returns the float32 products of numbers and factors, flushed as are the operands."""
    return flushed(flushed(numbers) * flushed(factors))


def rows_read(ids: Array, vocabulary_size: int, policy: int, default_row: int) -> tuple[Array, int]:
    """Returns the row number that each id reads, or NO_ROW or REFUSED, and the number of ids without a row.

    Args:
      ids: [N] int64.
      policy: ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP or WRAP, policy for an id outside [0, V).
    """
    is_bad = (ids < 0) | (ids >= vocabulary_size)
    instead: Array | int = REFUSED
    if policy == DROP:
        instead = NO_ROW
    elif policy == DROP_NEGATIVE:
        instead = np.where(ids < 0, NO_ROW, REFUSED)
    elif policy == DEFAULT_ROW:
        instead = default_row
    elif policy == CLAMP:
        instead = np.clip(ids, 0, vocabulary_size - 1)
    elif policy == WRAP:
        instead = np.where((ids < 0) & (ids >= -vocabulary_size), ids + vocabulary_size, REFUSED)
    return np.where(is_bad, instead, ids), int(is_bad.sum())


def gather(
    dtype: int,
    stored: Array,
    scales: Array,
    vocabulary_size: int,
    dim: int,
    ids: Array,
    policy: int,
    default_row: int,
    out: Array,
) -> int:
    """Copies the table row of each id into the array `out`; a dropped id gives zeros.

    Args:
      dtype, stored, scales, vocabulary_size, dim: the table.
      ids: [B or more] int64; ids behind B are not read.
      policy, default_row: as in rows_read.
      out: [B, D or more] float32, written.
    """
    table = StoredRows(dtype, stored, scales, vocabulary_size, dim)
    rows, missing = rows_read(ids[: len(out)], vocabulary_size, policy, default_row)
    refused = np.flatnonzero(rows == REFUSED)
    if refused.size:
        return int(refused[0])
    has_row = rows >= 0
    out[:, :dim] = 0
    with np.errstate(all="ignore"):
        out[has_row, :dim] = table.rows(rows[has_row])
    return MISSING - missing if missing else OK


def sequence(
    dtype: int,
    stored: Array,
    scales: Array,
    vocabulary_size: int,
    dim: int,
    values: Array,
    row_splits: Array,
    policy: int,
    default_row: int,
    out: Array,
) -> int:
    """Copies table rows of ragged ids into sequences: a row's vectors one behind the other; dropped ids give zeros.

    A row of ids that is shorter than L ends in zeros; ids behind the first L are not read, whatever they are.

    Args:
      dtype, stored, scales, vocabulary_size, dim, values, row_splits, policy, default_row: as in combine.
      out: [B, L, D] float32, written.
    """
    table = StoredRows(dtype, stored, scales, vocabulary_size, dim)
    of_row, place = _places(np.minimum(np.diff(row_splits), out.shape[1]))
    at = row_splits[of_row] + place
    rows, missing = rows_read(values[at], vocabulary_size, policy, default_row)
    refused = np.flatnonzero(rows == REFUSED)
    if refused.size:
        return int(at[refused[0]])
    has_row = rows >= 0
    out[...] = 0
    with np.errstate(all="ignore"):
        out[of_row[has_row], place[has_row]] = table.rows(rows[has_row])
    return MISSING - missing if missing else OK


def combine(
    dtype: int,
    stored: Array,
    scales: Array,
    vocabulary_size: int,
    dim: int,
    values: Array,
    row_splits: Array,
    weights: Array,
    positive_only: bool,
    combiner: int,
    at_least_one: bool,
    max_ids: int,
    truncate: bool,
    policy: int,
    default_row: int,
    out: Array,
) -> int:
    """Combines, for each row of ragged ids, the ids' vectors into one vector (sum, mean or sqrtn)."""
    table = StoredRows(dtype, stored, scales, vocabulary_size, dim)
    lengths = np.diff(row_splits)
    too_long = np.flatnonzero(lengths > max_ids) if max_ids and not truncate else np.empty(0, np.int64)
    if max_ids:
        lengths = np.minimum(lengths, max_ids)
    # The ids of the first row with too many ids, and all ids behind them, are not checked, because the kernel stops at
    # the first fault.
    of_row, place = _places(lengths[: too_long[0]] if too_long.size else lengths)
    at = row_splits[of_row] + place
    rows, missing = rows_read(values[at], vocabulary_size, policy, default_row)
    refused = np.flatnonzero(rows == REFUSED)
    if refused.size:
        return int(at[refused[0]])
    if too_long.size:
        return TOO_MANY - int(too_long[0])
    counts = rows >= 0
    if positive_only and weights.size:
        counts &= flushed(weights[at]) > 0
    of_row, at, rows = of_row[counts], at[counts], rows[counts]
    lengths = np.bincount(of_row, minlength=lengths.size)
    order, combiner = combiner & ~_COMBINER_BITS, combiner & _COMBINER_BITS
    with np.errstate(all="ignore"):
        if weights.size:
            factors = weights[at, None]
            sums = _sums(lambda some: product(table.rows(rows[some]), factors[some]), lengths, dim, order)
            totals = _sums_in_order(lambda some: factors[some], lengths, 1)
            squares = _sums_in_order(lambda some: product(factors[some], factors[some]), lengths, 1)
        else:
            sums = _sums(lambda some: table.rows(rows[some]), lengths, dim, order)
            ones = lengths if order == IN_ORDER else np.minimum(lengths, _MOST_ONES)
            totals = squares = ones[:, None].astype(np.float32)
        if combiner != SUM:
            divisors = np.sqrt(squares) if combiner == SQRTN else np.maximum(totals, 1) if at_least_one else totals
            quotients = flushed(sums / divisors)
            if order == BLOCKS_OF_8:
                quotients = np.where(totals < 10, product(sums, np.float32(1) / divisors), quotients)
            sums = np.where(divisors == 0, np.float32(0), quotients)
        if order != IN_ORDER and not weights.size:
            # TensorFlow's ops copy the vector of a row with one id.
            alone = np.flatnonzero(lengths == 1)
            sums[alone] = table.rows(rows[(np.cumsum(lengths) - lengths)[alone]])
    out[:, :dim] = sums
    return MISSING - missing if missing else OK


def _places(lengths: Array) -> tuple[Array, Array]:
    """Returns, for each ragged id, the number of its row and its position in this row."""
    of_row = np.repeat(np.arange(lengths.size), lengths)
    return of_row, np.arange(of_row.size) - (np.cumsum(lengths) - lengths)[of_row]


def _sums(terms: _Terms, lengths: Array, dim: int, order: int) -> Array:
    """Returns the sum of each row's vectors, added in one of the four orders.

    BLOCKS_OF_8: the sum of sums of eight terms; the first of these has the n % 8 terms that remain, and eight more if
      that is 0 or 1. FOUR_LANES: from 16 terms on, the sum of four lanes and of the remaining terms; columns that fill
      no packet are added in order. SEGMENT_MEAN: in order.
    """
    # TensorFlow's op for BLOCKS_OF_8 never adds to zeros; those for FOUR_LANES and SEGMENT_MEAN do in rows of more ids.
    from_zero = (order == IN_ORDER) | (lengths != 1) & (order != BLOCKS_OF_8)
    if order in (IN_ORDER, SEGMENT_MEAN):
        return _sums_in_order(terms, lengths, dim, from_zero)
    of_row, place = _places(lengths)
    if order == BLOCKS_OF_8:
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
    groups = _sums_in_order(lambda some: terms(by_group[some]), sizes, dim, from_zero[row_of_group])
    num_groups = np.bincount(row_of_group, minlength=lengths.size)
    found = _sums_in_order(lambda some: groups[some], num_groups, dim, False)
    packed = dim // _PACKET * _PACKET
    if order == FOUR_LANES and packed < dim:
        found[:, packed:] = _sums_in_order(terms, lengths, dim, from_zero)[:, packed:]
    return found


def _sums_in_order(terms: _Terms, lengths: Array, dim: int, from_zero: Array | bool = True) -> Array:
    """Returns the float32 sum of each row's vectors, added one by one in their order, unlike numpy's sum.

    Args:
      from_zero: for each row, whether its first vector is added to zeros, which turns -0.0 into 0.0.
    """
    begins = np.cumsum(lengths) - lengths
    sums = np.full((lengths.size, dim), -0.0, np.float32)
    sums[np.broadcast_to(from_zero, lengths.shape) | (lengths == 0)] = 0
    for k in range(lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > k)
        sums[longer] = flushed(sums[longer] + flushed(terms(begins[longer] + k)))
    return sums
