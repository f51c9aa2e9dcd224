"""Reads the rows of a table, as its file stores them, as float32 numbers.

As on TensorFlow's threads, a product takes denormal numbers for zeros, and makes zeros in their place; copies of
numbers keep them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from service.types import Array

_LEAST_NORMAL = np.finfo(np.float32).smallest_normal


def float32_rows(stored: Array, scales: Array | None, dtype: str, dim: int) -> Array:
    """Returns the [N, D] float32 numbers of rows.

    Args:
      stored: [N, columns] numbers as the file has them. scales: [N, 1] float32; None: the table has no scales.
      dtype: the table's, one of TABLE_DTYPES.
    """
    if dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "int4":
        # The low half of a byte is the number of an even column; shifting it left and back right extends its sign.
        octets = stored.view(np.int8)
        stored = np.stack([octets << 4 >> 4, octets >> 4], axis=2).reshape(len(octets), 2 * octets.shape[1])[:, :dim]
    with np.errstate(over="ignore"):
        found: Array = stored.astype(np.float32)
    return found if scales is None else product(found, scales)


def flushed(numbers: Any) -> Array:
    """Returns float32 numbers with zeros of the same sign in place of denormal numbers.

    >>> flushed(np.array([1e-39, -1e-39, 1.5], np.float32)).tolist()
    [0.0, -0.0, 1.5]
    """
    found: Array = np.where(np.abs(numbers) < _LEAST_NORMAL, np.copysign(np.float32(0), numbers), numbers)
    return found


def product(numbers: Array, factors: Array | np.float32) -> Array:
    """Returns the float32 products of numbers and factors, flushed as are the operands."""
    return flushed(flushed(numbers) * flushed(factors))
