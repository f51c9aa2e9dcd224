"""Defines the kernels' numbers for dtypes, combiners, orders of additions, policies, metrics and results."""

from __future__ import annotations

OK = -1
TOO_MANY = -2
# A kernel returns TOO_MANY - r for a row r with too many ids. MISSING is smaller than any such number, because a
# request has fewer than 2**40 rows.
MISSING = -(1 << 40)

SUM, MEAN, SQRTN = 0, 1, 2
# Numbers for the order in which vectors are added; kernels take the sum of such a number and a combiner's.
IN_ORDER, BLOCKS_OF_8, FOUR_LANES, SEGMENT_MEAN = 0, 4, 8, 12
ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP, WRAP = 0, 1, 2, 3, 4, 5
# The kernels' numbers for the metrics by which a search finds nearest rows.
DOT, COSINE, L2 = 0, 1, 2
FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 = 0, 1, 2, 3, 4

# Name of a policy for bad ids in the manifest -> the kernels' number for it.
POLICIES = {
    "error": ERROR,
    "drop": DROP,
    "drop_negative": DROP_NEGATIVE,
    "default_row": DEFAULT_ROW,
    "clamp": CLAMP,
    "wrap": WRAP,
}

# Name of a search's metric in requests -> the kernels' number for it.
METRICS = {"dot": DOT, "cosine": COSINE, "l2": L2}
