"""Gather, combine and sequence, compiled by numba: one pass over the ids, the GIL released.

A table is five integers: what its numbers are (FLOAT32, FLOAT16, BFLOAT16, INT8, INT4), the address where it lies
(perhaps unaligned in its file: a checkpoint packs tensors back to back), the address of its [V] float32 scales if it is
INT8 or INT4 (else 0), V, and D. Whoever calls keeps it alive. Numbers become float32 before anything is done with them,
those of INT8 and INT4 times the scale of their row, and are added up in float32 in the order of the ids.

Each kernel writes the first D numbers of each row of out, and returns OK or where it stopped: the position of the
first id that has no row, or TOO_MANY - r for a row r that is too long. One that came to the end although n ids have no
row, as its policy wants, returns MISSING - n: so they are counted at no cost where there are none. The caller has
checked that row_splits never decrease and lie within the ids.

A row is cut first; what is cut off is never judged. Then an id is held against the table, then its weight against 0.

Source: the arithmetic is TensorFlow 2.21's, `_ragged_embedding_lookup_with_reduce` of
python/tpu/tpu_embedding_for_serving.py (device cpu) and `sparse_embedding_aggregate_slice` of
python/tpu/feature_column_v2.py (device tpu_tensor_core); pruning is `safe_embedding_lookup_sparse` of
python/ops/embedding_ops.py, sequences are `_embedding_lookup_for_sparse_tensor` of the first.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.lookup.summation import BLOCKS_OF_8 as BLOCKS_OF_8
from service.lookup.summation import FOUR_LANES as FOUR_LANES
from service.lookup.summation import IN_ORDER as IN_ORDER
from service.lookup.summation import add_up
from service.lookup.vectors import add_rows, copy_row, prefetch

OK = -1
TOO_MANY = -2
# Below TOO_MANY - r of any row, for a request has fewer bytes than that.
MISSING = -(1 << 40)

SUM, MEAN, SQRTN = 0, 1, 2
# What is left of a combiner's number without the order of additions.
_COMBINER_BITS = 3
ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP, WRAP = 0, 1, 2, 3, 4, 5
FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 = 0, 1, 2, 3, 4

_NO_ROW, _REFUSED = -1, -2
# By dtype; two numbers of INT4 share a byte.
_BYTES = (4, 2, 2, 1)
# Rows that are asked for before they are read. Measured by thread time on a table of 6.4 MB, 4096 rows of ten ids
# each, 128 bytes per id: none 1.19 ms, 16 ahead 0.55 ms, 24 ahead 0.53 ms; gathers of 4096 x 256 bytes from 256 MB:
# none 219 us, 8 ahead 156 us, 16 ahead 160 us, 32 ahead 170 us.
_AHEAD = 16

_INT = types.int64
_IDS = types.Array(types.int64, 1, "C", readonly=True, aligned=False)
_WEIGHTS = types.Array(types.float32, 1, "C", readonly=True, aligned=False)
_OUT = types.Array(types.float32, 2, "C", aligned=False)
_SEQUENCES = types.Array(types.float32, 3, "C", aligned=False)
_PLACE = (_INT, _INT, _INT, _INT)
_GATHER = (*_PLACE, _IDS, _INT, _INT, _OUT)
_COMBINE = (
    *(*_PLACE, _IDS, _IDS, _WEIGHTS, types.boolean),
    *(_INT, types.boolean, _INT, types.boolean, _INT, _INT, _OUT),
)
_SEQUENCE = (*_PLACE, _IDS, _IDS, _INT, _INT, _SEQUENCES)


# What has no signature is compiled into what calls it, once for each kind of numbers, and kept nowhere else.
@njit(nogil=True)
def _instead(bad_id, vocabulary_size, policy, default_row):  # type: ignore[no-untyped-def]
    # Which row a bad id reads; kept out of the loops, which only ask whether an id is bad.
    if policy == DROP or (policy == DROP_NEGATIVE and bad_id < 0):
        return _NO_ROW
    if policy == DEFAULT_ROW:
        return default_row
    if policy == CLAMP:
        return 0 if bad_id < 0 else vocabulary_size - 1
    if policy == WRAP and bad_id < 0 and bad_id + vocabulary_size >= 0:
        return bad_id + vocabulary_size
    return _REFUSED


@njit(nogil=True)
def _row_bytes(dtype, dim):  # type: ignore[no-untyped-def]
    return (dim + 1) // 2 if dtype == INT4 else dim * _BYTES[dtype]


@njit(nogil=True)
def _ask_for(table_at, scales_at, vocabulary_size, row_bytes, ids, i):  # type: ignore[no-untyped-def]
    if i < ids.shape[0]:
        row = ids[i]
        if row >= 0 and row < vocabulary_size:
            prefetch(table_at + row * row_bytes, row_bytes)
            if scales_at != 0:
                prefetch(scales_at + row * 4, 4)


@njit(nogil=True)
def _gather(  # type: ignore[no-untyped-def]
    kind, row_bytes, table_at, scales_at, vocabulary_size, dim, ids, policy, default_row, out
):
    out_at, out_bytes = out.ctypes.data, out.shape[1] * 4
    missing = 0
    for i in range(_AHEAD):
        _ask_for(table_at, scales_at, vocabulary_size, row_bytes, ids, i)
    for i in range(out.shape[0]):
        _ask_for(table_at, scales_at, vocabulary_size, row_bytes, ids, i + _AHEAD)
        row = ids[i]
        if row < 0 or row >= vocabulary_size:
            missing += 1
            row = _instead(row, vocabulary_size, policy, default_row)
            if row == _REFUSED:
                return i
            if row == _NO_ROW:
                out[i, :dim] = np.float32(0)
                continue
        copy_row(kind, table_at + row * row_bytes, scales_at + row * 4, dim, out_at + i * out_bytes)
    return MISSING - missing if missing else OK


# Signatures are given so that compiling happens once, ahead (service/compile_kernels.py), and not at the first request.
@njit(_INT(_INT, *_GATHER), cache=True, nogil=True)
def gather(  # type: ignore[no-untyped-def]
    dtype, table_at, scales_at, vocabulary_size, dim, ids, policy, default_row, out
):
    """Copies row ids[i] of a table into out[i]; a dropped id gives zeros.

    Args:
      dtype, table_at, scales_at, vocabulary_size, dim: the table.
      ids: [B or more] int64; those behind B are read ahead, but not looked at.
      policy: ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP or WRAP, for an id outside [0, V).
      out: [B, D or more] float32, written.
    """
    # Arguments that all kinds have in common; the first one's type says which entry is meant.
    rest = (_row_bytes(dtype, dim), table_at, scales_at, vocabulary_size, dim, ids, policy, default_row, out)
    if dtype == FLOAT32:
        return _gather(np.float32(0), *rest)
    if dtype == FLOAT16:
        return _gather(np.int16(0), *rest)
    if dtype == BFLOAT16:
        return _gather(np.uint16(0), *rest)
    if dtype == INT8:
        return _gather(np.int8(0), *rest)
    return _gather(np.uint8(0), *rest)


@njit(nogil=True)
def _combine(  # type: ignore[no-untyped-def]
    kind,
    row_bytes,
    table_at,
    scales_at,
    vocabulary_size,
    dim,
    values,
    row_splits,
    weights,
    positive_only,
    combiner,
    at_least_one,
    max_ids,
    truncate,
    policy,
    default_row,
    out,
):
    out_at, ids_at, out_bytes = out.ctypes.data, values.ctypes.data, out.shape[1] * 4
    is_weighted = weights.shape[0] > 0
    order, combiner = combiner & ~_COMBINER_BITS, combiner & _COMBINER_BITS
    weights_at = weights.ctypes.data if is_weighted else 0
    num_rows = row_splits.shape[0] - 1
    # Where all ids have rows, which is nearly always so, none is looked at again.
    largest = np.uint64(0)
    for i in range(row_splits[0], row_splits[num_rows]):
        # What is below 0 is largest of all.
        largest = max(largest, np.uint64(values[i]))
    have_rows = bool(largest < np.uint64(vocabulary_size))
    missing = 0
    for i in range(_AHEAD):
        _ask_for(table_at, scales_at, vocabulary_size, row_bytes, values, row_splits[0] + i)
    last_at = ids_at + 8 * (values.shape[0] - 1)
    for r in range(num_rows):
        begin, end = row_splits[r], row_splits[r + 1]
        if max_ids > 0 and end - begin > max_ids:
            if not truncate:
                return TOO_MANY - r
            end = begin + max_ids
        # Where every id counts as it is, rows are read by the ids of the request themselves.
        is_plain = order == IN_ORDER
        if not have_rows:
            for i in range(begin, end):
                is_plain = is_plain and values[i] >= 0 and values[i] < vocabulary_size
        total = np.float32(0)
        total_squares = np.float32(0)
        if is_weighted:
            for i in range(begin, end):
                weight = weights[i]
                is_plain = is_plain and (not positive_only or weight > np.float32(0))
                total += weight
                total_squares += weight * weight
        else:
            total = total_squares = np.float32(end - begin)
        to = out_at + r * out_bytes
        if is_plain:
            weights_from = weights_at + begin * 4 if is_weighted else 0
            from_at = ids_at + begin * 8
            ahead_at = from_at + 8 * _AHEAD
            add_rows(kind, table_at, scales_at, from_at, weights_from, end - begin, dim, to, ahead_at, last_at)
        else:
            rows = np.empty(end - begin, np.int64)
            factors = np.empty(end - begin, np.float32)
            count = 0
            total = np.float32(0)
            total_squares = np.float32(0)
            for i in range(begin, end):
                _ask_for(table_at, scales_at, vocabulary_size, row_bytes, values, i + _AHEAD)
                row = values[i]
                if row < 0 or row >= vocabulary_size:
                    missing += 1
                    row = _instead(row, vocabulary_size, policy, default_row)
                    if row == _REFUSED:
                        return i
                    if row == _NO_ROW:
                        continue
                weight = weights[i] if is_weighted else np.float32(1)
                if positive_only and not weight > np.float32(0):
                    continue
                total += weight
                total_squares += weight * weight
                rows[count] = row
                factors[count] = weight
                count += 1
            if count > 0:
                add_up(kind, table_at, scales_at, rows[:count], factors[:count], dim, order, out[r])
            else:
                out[r, :dim] = np.float32(0)
        if combiner == SUM:
            continue
        if combiner == SQRTN:
            divisor = np.float32(np.sqrt(total_squares))
        elif at_least_one:
            divisor = max(total, np.float32(1))
        else:
            divisor = total
        if divisor == np.float32(0):
            out[r, :dim] = np.float32(0)
        elif order == BLOCKS_OF_8 and total < np.float32(10):
            factor = np.float32(1) / divisor
            for d in range(dim):
                out[r, d] *= factor
        else:
            for d in range(dim):
                out[r, d] /= divisor
    return MISSING - missing if missing else OK


@njit(_INT(_INT, *_COMBINE), cache=True, nogil=True)
def combine(  # type: ignore[no-untyped-def]
    dtype,
    table_at,
    scales_at,
    vocabulary_size,
    dim,
    values,
    row_splits,
    weights,
    positive_only,
    combiner,
    at_least_one,
    max_ids,
    truncate,
    policy,
    default_row,
    out,
):
    """Combines the rows of a table that each row of ragged ids names into one vector.

    sum: sum(w v). mean: sum(w v) / sum(w). sqrtn: sum(w v) / sqrt(sum(w^2)). A divisor of 0 gives zeros, so an empty
    row is all zeros.

    Args:
      dtype, table_at, scales_at, vocabulary_size, dim: the table.
      values: [N] int64.
      row_splits: [B+1] int64.
      weights: [N] float32, or [0] for 1 everywhere.
      positive_only: leaves ids out whose weight is 0, less, or NaN.
      combiner: SUM, MEAN or SQRTN, plus IN_ORDER, BLOCKS_OF_8 (without weights) or FOUR_LANES.
      at_least_one: a mean divides by max(sum(w), 1), as the tensor core does.
      max_ids: K, or 0 for no limit; a longer row is cut at K when truncate, else refused.
      policy: as in gather.
      out: [B, D or more] float32, written.
    """
    options = (positive_only, combiner, at_least_one, max_ids, truncate, policy, default_row)
    # Arguments that all kinds have in common; the first one's type says which entry is meant.
    rest = (
        _row_bytes(dtype, dim),
        table_at,
        scales_at,
        vocabulary_size,
        dim,
        values,
        row_splits,
        weights,
        *options,
        out,
    )
    if dtype == FLOAT32:
        return _combine(np.float32(0), *rest)
    if dtype == FLOAT16:
        return _combine(np.int16(0), *rest)
    if dtype == BFLOAT16:
        return _combine(np.uint16(0), *rest)
    if dtype == INT8:
        return _combine(np.int8(0), *rest)
    return _combine(np.uint8(0), *rest)


@njit(nogil=True)
def _sequence(  # type: ignore[no-untyped-def]
    kind, row_bytes, table_at, scales_at, vocabulary_size, dim, values, row_splits, policy, default_row, out
):
    out_at = out.ctypes.data
    missing = 0
    length = out.shape[1]
    for r in range(row_splits.shape[0] - 1):
        begin = row_splits[r]
        count = min(row_splits[r + 1] - begin, length)
        for k in range(count):
            _ask_for(table_at, scales_at, vocabulary_size, row_bytes, values, begin + k + _AHEAD)
            row = values[begin + k]
            if row < 0 or row >= vocabulary_size:
                missing += 1
                row = _instead(row, vocabulary_size, policy, default_row)
                if row == _REFUSED:
                    return begin + k
                if row == _NO_ROW:
                    out[r, k, :] = np.float32(0)
                    continue
            to = out_at + (r * length + k) * dim * 4
            copy_row(kind, table_at + row * row_bytes, scales_at + row * 4, dim, to)
        out[r, count:, :] = np.float32(0)
    return MISSING - missing if missing else OK


@njit(_INT(_INT, *_SEQUENCE), cache=True, nogil=True)
def sequence(  # type: ignore[no-untyped-def]
    dtype, table_at, scales_at, vocabulary_size, dim, values, row_splits, policy, default_row, out
):
    """Copies the rows of a table that each row of ragged ids names, one behind the other; a dropped id leaves zeros.

    A row of ids that is shorter than L ends in zeros; ids behind the first L are not read, whatever they are.

    Args:
      dtype, table_at, scales_at, vocabulary_size, dim, values, row_splits, policy: as in combine.
      out: [B, L, D] float32, written.
    """
    # Arguments that all kinds have in common; the first one's type says which entry is meant.
    rest = (
        _row_bytes(dtype, dim),
        table_at,
        scales_at,
        vocabulary_size,
        dim,
        values,
        row_splits,
        policy,
        default_row,
        out,
    )
    if dtype == FLOAT32:
        return _sequence(np.float32(0), *rest)
    if dtype == FLOAT16:
        return _sequence(np.int16(0), *rest)
    if dtype == BFLOAT16:
        return _sequence(np.uint16(0), *rest)
    if dtype == INT8:
        return _sequence(np.int8(0), *rest)
    return _sequence(np.uint8(0), *rest)
