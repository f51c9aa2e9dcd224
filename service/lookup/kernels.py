"""Gather, combine and sequence, compiled by numba: one pass over the ids, no temporaries, the GIL released.

Each kernel takes a table that may lie unaligned in its file (a checkpoint packs tensors back to back), writes the whole
of out, and returns OK or where it stopped: the position of the first id that has no row, or TOO_MANY - r for a row r
that is too long. One that came to the end although n ids have no row, as its policy wants, returns MISSING - n: so they
are counted at no cost where there are none. The caller has checked that row_splits start at 0, never decrease, and end
at the number of ids.

A row is cut first; what is cut off is never judged. Then an id is held against the table, then its weight against 0.

Source: the arithmetic is TensorFlow 2.21's, `_ragged_embedding_lookup_with_reduce` of
python/tpu/tpu_embedding_for_serving.py (device cpu) and `sparse_embedding_aggregate_slice` of
python/tpu/feature_column_v2.py (device tpu_tensor_core); pruning is `safe_embedding_lookup_sparse` of
python/ops/embedding_ops.py, sequences are `_embedding_lookup_for_sparse_tensor` of the first.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

OK = -1
TOO_MANY = -2
# Below TOO_MANY - r of any row, for a request has fewer bytes than that.
MISSING = -(1 << 40)

SUM, MEAN, SQRTN = 0, 1, 2
ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP = 0, 1, 2, 3, 4

_NO_ROW, _REFUSED = -1, -2

_TABLE = types.Array(types.float32, 2, "C", readonly=True, aligned=False)
_IDS = types.Array(types.int64, 1, "C", readonly=True, aligned=False)
_WEIGHTS = types.Array(types.float32, 1, "C", readonly=True, aligned=False)
_OUT = types.Array(types.float32, 2, "C", aligned=False)
_SEQUENCES = types.Array(types.float32, 3, "C", aligned=False)
_INT = types.int64


@njit(types.int64(_INT, _INT, _INT, _INT), cache=True, nogil=True)
def _instead(bad_id, vocabulary_size, policy, default_row):  # type: ignore[no-untyped-def]
    # Which row a bad id reads; kept out of the loops, which only ask whether an id is bad.
    if policy == DROP or (policy == DROP_NEGATIVE and bad_id < 0):
        return _NO_ROW
    if policy == DEFAULT_ROW:
        return default_row
    if policy == CLAMP:
        return 0 if bad_id < 0 else vocabulary_size - 1
    return _REFUSED


# Signatures are given so that compiling happens once, at build time (kernel_cache.py), and not at the first request.
@njit(types.int64(_TABLE, _IDS, _INT, _INT, _OUT), cache=True, nogil=True)
def gather(table, ids, policy, default_row, out):  # type: ignore[no-untyped-def]
    """Copies row ids[i] of table into out[i]; a dropped id gives zeros.

    Args:
      table: [V, D] float32.
      ids: [B] int64.
      policy: ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW or CLAMP, for an id outside [0, V).
      out: [B, D] float32, written.
    """
    vocabulary_size, dim = table.shape
    missing = 0
    for i in range(ids.shape[0]):
        row = ids[i]
        if row < 0 or row >= vocabulary_size:
            missing += 1
            row = _instead(row, vocabulary_size, policy, default_row)
            if row == _REFUSED:
                return i
            if row == _NO_ROW:
                out[i, :] = np.float32(0)
                continue
        for d in range(dim):
            out[i, d] = table[row, d]
    return MISSING - missing if missing else OK


@njit(
    types.int64(
        *(_TABLE, _IDS, _IDS, _WEIGHTS, types.boolean),
        *(_INT, types.boolean, _INT, types.boolean, _INT, _INT, _OUT),
    ),
    cache=True,
    nogil=True,
)
def combine(  # type: ignore[no-untyped-def]
    table,
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
    """Combines the rows of table that each row of ragged ids names into one vector.

    sum: sum(w v). mean: sum(w v) / sum(w). sqrtn: sum(w v) / sqrt(sum(w^2)). A divisor of 0 gives zeros, so an empty
    row is all zeros.

    Args:
      table: [V, D] float32.
      values: [N] int64.
      row_splits: [B+1] int64.
      weights: [N] float32, or [0] for 1 everywhere.
      positive_only: leaves ids out whose weight is 0, less, or NaN.
      combiner: SUM, MEAN or SQRTN.
      at_least_one: a mean divides by max(sum(w), 1), as the tensor core does.
      max_ids: K, or 0 for no limit; a longer row is cut at K when truncate, else refused.
      policy: as in gather.
      out: [B, D] float32, written.
    """
    vocabulary_size, dim = table.shape
    missing = 0
    is_weighted = weights.shape[0] > 0
    for r in range(row_splits.shape[0] - 1):
        begin, end = row_splits[r], row_splits[r + 1]
        if max_ids > 0 and end - begin > max_ids:
            if not truncate:
                return TOO_MANY - r
            end = begin + max_ids
        out[r, :] = np.float32(0)
        total = np.float32(0)
        total_squares = np.float32(0)
        for i in range(begin, end):
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
            if is_weighted:
                for d in range(dim):
                    out[r, d] += weight * table[row, d]
            else:
                for d in range(dim):
                    out[r, d] += table[row, d]
        if combiner == SUM:
            continue
        if combiner == SQRTN:
            divisor = np.float32(np.sqrt(total_squares))
        elif at_least_one:
            divisor = max(total, np.float32(1))
        else:
            divisor = total
        if divisor == np.float32(0):
            out[r, :] = np.float32(0)
        else:
            for d in range(dim):
                out[r, d] /= divisor
    return MISSING - missing if missing else OK


@njit(
    types.int64(_TABLE, _IDS, _IDS, _INT, _INT, _SEQUENCES),
    cache=True,
    nogil=True,
)
def sequence(table, values, row_splits, policy, default_row, out):  # type: ignore[no-untyped-def]
    """Copies the rows of table that each row of ragged ids names, one behind the other; a dropped id leaves zeros.

    A row of ids that is shorter than L ends in zeros; ids behind the first L are not read, whatever they are.

    Args:
      table, values, row_splits, policy: as in combine.
      out: [B, L, D] float32, written.
    """
    vocabulary_size, dim = table.shape
    missing = 0
    length = out.shape[1]
    for r in range(row_splits.shape[0] - 1):
        begin = row_splits[r]
        count = min(row_splits[r + 1] - begin, length)
        for k in range(count):
            row = values[begin + k]
            if row < 0 or row >= vocabulary_size:
                missing += 1
                row = _instead(row, vocabulary_size, policy, default_row)
                if row == _REFUSED:
                    return begin + k
                if row == _NO_ROW:
                    out[r, k, :] = np.float32(0)
                    continue
            for d in range(dim):
                out[r, k, d] = table[row, d]
        out[r, count:, :] = np.float32(0)
    return MISSING - missing if missing else OK
