"""A histogram of latencies with 32 buckets for each doubling, so that every quantile is accurate to 2.2 %."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

_PER_DOUBLING = 32
NUM_BUCKETS = 40 * _PER_DOUBLING


@njit(cache=True, nogil=True)
def record(histogram, nanoseconds):  # type: ignore[no-untyped-def]
    """Counts one latency in a histogram, [NUM_BUCKETS] int64."""
    bucket = int(math.log2(max(nanoseconds, 1)) * _PER_DOUBLING)
    histogram[min(bucket, NUM_BUCKETS - 1)] += 1


def quantile_ms(histogram: np.ndarray[Any, Any], share: float) -> float:
    """Returns a quantile of the latencies in a histogram, in milliseconds; NaN if the histogram is empty."""
    total = int(histogram.sum())
    if not total:
        return math.nan
    bucket = int(np.searchsorted(np.cumsum(histogram), max(1, math.ceil(share * total))))
    return float(2 ** ((bucket + 0.5) / _PER_DOUBLING) / 1e6)
