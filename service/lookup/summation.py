"""Adds rows in the same order as TensorFlow's ops, so that sums agree in the last bits; see LookupFeature.summation.

Source: SparseSegmentReductionOpBase::Reduce of tensorflow/core/kernels/segment_reduction_ops_impl.h (blocks), and the
packets of InnerMostDimPreserver in Eigen's TensorReduction.h, as SegmentSum uses it (lanes); TensorFlow 2.21.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from service.lookup.vectors import add_rows

# Added to the number of a combiner.
IN_ORDER, BLOCKS_OF_8, FOUR_LANES = 0, 4, 8


@njit(nogil=True)
def add_up(kind, table_at, scales_at, ids, weights, dim, order, out):  # type: ignore[no-untyped-def]
    """Writes the weighted sum of rows in one of three orders.

    The steps of all orders share one call of add_rows: its code is large, and is compiled for each kind of numbers.

    Args:
      kind, table_at, scales_at: as in vectors.add_rows.
      ids: [N] int64, at least one, each inside the table.
      weights: [N] float32.
      order: IN_ORDER; BLOCKS_OF_8, the first of which takes what 8 leaves over; or FOUR_LANES: from 16 rows on, four
        sums for each packet of 8 columns, and other columns in order.
      out: [D or more] float32, written.
    """
    count, rest, length = ids.shape[0], ids.shape[0] & 7, ids.shape[0] // 4
    packed = dim // 8 * 8 if order == FOUR_LANES and count >= 16 else 0
    end = min(count, rest + 8 if rest < 2 else rest) if order == BLOCKS_OF_8 else count
    some, factors, scratch = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(dim, np.float32)
    begin, stride, size, width = 0, 1, end, dim
    # The steps of lanes: all rows in order, the four lanes, then each row that is left over.
    num_steps = 1 + (count - end + 7) // 8 if packed == 0 else 5 + count - 4 * length
    for step in range(num_steps):
        for i in range(size):
            some[i], factors[i] = ids[begin + i * stride], weights[begin + i * stride]
        at = some.ctypes.data
        last = at + 8 * (size - 1)
        add_rows(kind, table_at, scales_at, at, factors.ctypes.data, size, dim, scratch.ctypes.data, at, last)
        if step == 0 or (packed > 0 and step == 1):
            out[:width] = scratch[:width]
        else:
            out[:width] += scratch[:width]
        if packed == 0:
            begin, size = begin + size, 8
        elif step < 4:
            begin, stride, size, width = step, 4, length, packed
        else:
            begin, size = 4 * length + step - 4, 1
