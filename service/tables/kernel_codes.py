"""Numbers that kernels take and return: dtypes, combiners, policies for bad ids, metrics, and why a kernel stopped."""

from __future__ import annotations

OK = -1
TOO_MANY = -2
# Smaller than TOO_MANY - r for any row r, because a request has fewer rows than 2**40.
MISSING = -(1 << 40)

SUM, MEAN, SQRTN = 0, 1, 2
# The order of additions, added to the number of a combiner; see manifest.LookupFeature.summation.
IN_ORDER, BLOCKS_OF_8, FOUR_LANES = 0, 4, 8
ERROR, DROP, DROP_NEGATIVE, DEFAULT_ROW, CLAMP, WRAP = 0, 1, 2, 3, 4, 5
# Metrics of a search for neighbours.
DOT, COSINE, L2 = 0, 1, 2
FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 = 0, 1, 2, 3, 4

# Policies for bad ids by their names in a manifest.
POLICIES = {
    "error": ERROR,
    "drop": DROP,
    "drop_negative": DROP_NEGATIVE,
    "default_row": DEFAULT_ROW,
    "clamp": CLAMP,
    "wrap": WRAP,
}

# Metrics by their names on the wire.
METRICS = {"dot": DOT, "cosine": COSINE, "l2": L2}
