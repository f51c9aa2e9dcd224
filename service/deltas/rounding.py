"""float32 rows as tables of fewer bits keep them: how the exporter rounds a table, and a delta its rows.

An int8 row has a scale: its largest number is 127 of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.core.types import Array

# The largest finite number.
LARGEST: Mapping[str, float] = {"float16": 65504.0, "bfloat16": float(255 * 2.0**120)}
_SMALLEST_SCALE = np.float32(2.0**-126)


def rounded(rows: Array, dtype: str) -> tuple[Array, Array | None]:
    """Returns [N, D] numbers as core.types.TABLE_DTYPES reads the dtype, and of int8 their [N, 1] float32 scales.

    What is beyond the dtype becomes an infinity; int8 has no place for NaN and infinity.

    >>> rounded(np.float32([[1.5]]), "float64")
    (array([[1.5]]), None)
    >>> numbers, scales = rounded(np.float32([[1.0, -2.0]]), "int8")
    >>> numbers.tolist(), scales.tolist() == [[np.float32(2) / np.float32(127)]]
    ([[64, -127]], True)
    """
    if dtype == "float32":
        return np.asarray(rows, np.float32), None
    if dtype == "float64":
        return rows.astype(np.float64), None
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return rows.astype(np.float16), None
    if dtype == "bfloat16":
        return _to_bfloat16(rows), None
    scales = _scales(rows)
    steps = np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0)
    return np.rint(steps).astype(np.int8), scales


def _to_bfloat16(rows: Array) -> Array:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding could carry the digits of a NaN away; then it would be an infinity.
    return np.where(np.isnan(rows), (bits >> 16) | 0x40, up).astype(np.uint16)


def _scales(rows: Array) -> Array:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    # Below the smallest normal number a scale has few digits of its own, and half a step would not bound the error.
    scales: Array = np.maximum(largest / np.float32(127), _SMALLEST_SCALE)
    return np.where(largest > 0, scales, np.float32(0)).astype(np.float32)
