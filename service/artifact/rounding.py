"""Rounds float32 rows to a table dtype of fewer bits: whole tables at the export, and the rows of deltas.

Each row of int8 or int4 has a scale: the row's largest number is 127 times the scale (int8), or 7 times (int4).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.types import Array

# Dtype of a table -> the largest finite number of this dtype.
LARGEST: Mapping[str, float] = {"float16": 65504.0, "bfloat16": float(255 * 2.0**120)}
# Dtype of a table whose rows have a scale -> the largest integer that a row stores.
STEPS: Mapping[str, int] = {"int8": 127, "int4": 7}
_SMALLEST_SCALE = np.float32(2.0**-126)


def rounded(rows: Array, dtype: str) -> tuple[Array, Array | None]:
    """Converts [N, D] float32 rows to a table dtype; returns stored rows and, for int8 and int4, [N, 1] float32 scales.

    Stored rows are [N, D], for int4 [N, ceil(D / 2)] bytes. Numbers beyond the dtype's range become infinities; int8
    and int4 have no place for NaN and infinity.

    >>> rounded(np.float32([[1.5]]), "float64")
    (array([[1.5]]), None)
    >>> numbers, scales = rounded(np.float32([[1.0, -2.0]]), "int8")
    >>> numbers.tolist(), scales.tolist() == [[np.float32(2) / np.float32(127)]]
    ([[64, -127]], True)
    >>> [f"{byte:02x}" for byte in rounded(np.float32([[1.0, -7.0, 3.0]]), "int4")[0][0]]
    ['91', '03']
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
    scales = _scales(rows, STEPS[dtype])
    steps = np.rint(np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0)).astype(np.int8)
    return (packed(steps) if dtype == "int4" else steps), scales


def packed(numbers: Array) -> Array:
    """Packs [N, D] int8 numbers from -8 to 7 into [N, ceil(D / 2)] bytes.

    For an odd D, the last byte's high half is 0.
    """
    halves = numbers.view(np.uint8) & 15
    octets = halves[:, ::2].copy()
    octets[:, : halves.shape[1] // 2] |= halves[:, 1::2] << 4
    return octets


def unpacked(octets: Array, embedding_dim: int | None = None) -> Array:
    """Unpacks [..., ceil(D / 2)] bytes into [..., D] int8 numbers; without embedding_dim, D is even.

    >>> unpacked(packed(np.int8([[1, -7, 3]])), 3).tolist()
    [[1, -7, 3]]
    """
    low, high = octets.view(np.int8) << 4 >> 4, octets.view(np.int8) >> 4
    numbers = np.stack([low, high], axis=-1).reshape(*octets.shape[:-1], 2 * octets.shape[-1])
    return numbers[..., :embedding_dim]


def _to_bfloat16(rows: Array) -> Array:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # A NaN is not rounded: rounding could clear its mantissa, which would turn the NaN into an infinity.
    return np.where(np.isnan(rows), (bits >> 16) | 0x40, up).astype(np.uint16)


def _scales(rows: Array, steps: int) -> Array:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    # The scale of an int8 or int4 row is at least the smallest normal float32: a smaller scale has few significant
    # bits, and the rounding error could then exceed half a step.
    scales: Array = np.maximum(largest / np.float32(steps), _SMALLEST_SCALE)
    return np.where(largest > 0, scales, np.float32(0)).astype(np.float32)
