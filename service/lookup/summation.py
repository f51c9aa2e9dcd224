"""Adds rows in the same order as TensorFlow's ops, so that sums agree in the last bits; see LookupFeature.summation.

Source: SparseSegmentReductionOpBase::Reduce of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and the
packets of InnerMostDimPreserver in Eigen's TensorReduction.h, as SegmentSum uses it (lanes); TensorFlow 2.21.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from service.lookup.vectors import add_rows


@njit(nogil=True)
def add_in_blocks(kind, table_at, scales_at, ids, dim, out):  # type: ignore[no-untyped-def]
    """Writes the sum of rows, added in blocks of 8; the first block has N % 8 rows, or 8 or 9 where that is 0 or 1.

    Args:
      kind, table_at, scales_at: as in vectors.add_rows.
      ids: [N] int64, at least one, each inside the table.
      out: [D or more] float32, written.
    """
    count, rest = ids.shape[0], ids.shape[0] & 7
    end = min(count, rest + 8 if rest < 2 else rest)
    at, scratch = ids.ctypes.data, np.empty(dim, np.float32)
    last = at + 8 * (count - 1)
    add_rows(kind, table_at, scales_at, at, 0, end, dim, out.ctypes.data, at + 8 * end, last)
    while end < count:
        from_at = at + 8 * end
        add_rows(kind, table_at, scales_at, from_at, 0, 8, dim, scratch.ctypes.data, from_at + 64, last)
        out[:dim] += scratch
        end += 8


@njit(nogil=True)
def add_in_lanes(kind, table_at, scales_at, ids, weights, dim, out):  # type: ignore[no-untyped-def]
    """Writes the weighted sum of rows: from 16 rows on, four sums for each packet of 8 columns; other columns in order.

    Args:
      ids, out: as in add_in_blocks.
      weights: [N] float32, or [0] for 1 everywhere.
    """
    count, packed = ids.shape[0], dim // 8 * 8
    is_weighted = weights.shape[0] > 0
    ids_at, weights_at = ids.ctypes.data, weights.ctypes.data if is_weighted else 0
    last = ids_at + 8 * (count - 1)
    add_rows(kind, table_at, scales_at, ids_at, weights_at, count, dim, out.ctypes.data, ids_at, last)
    if count < 16 or packed == 0:
        return
    length = count // 4
    lane, factors = np.empty(length, np.int64), np.empty(length, np.float32)
    lane_at, factors_at = lane.ctypes.data, factors.ctypes.data if is_weighted else 0
    scratch = np.empty(dim, np.float32)
    for number in range(4 + count - 4 * length):
        # Four lanes, then each row that is left over.
        is_lane = number < 4
        size = length if is_lane else 1
        for i in range(size):
            place = number + 4 * i if is_lane else 4 * length + number - 4
            lane[i] = ids[place]
            if is_weighted:
                factors[i] = weights[place]
        end = lane_at + 8 * (size - 1)
        add_rows(kind, table_at, scales_at, lane_at, factors_at, size, dim, scratch.ctypes.data, lane_at, end)
        if number == 0:
            out[:packed] = scratch[:packed]
        else:
            out[:packed] += scratch[:packed]
