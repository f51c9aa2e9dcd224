"""Decodes the numbers and strings of JSON answers to arrays; each float32 gets exactly the bits that the server had.

The server writes a float32 in the shortest decimal form that reads back as the same float32. Python's json reads
decimals as float64, so a float32 would be rounded twice: 7.038531e-26 lies below the middle of two float32, is read as
the float64 of exactly that middle, and is then rounded up. A float64 in such a middle is therefore compared with its
decimal form, which repr() of the float64 restores.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import numpy as np

from embedding_client.types import Array, TensorDescription

# _LOST_BITS masks the low bits of a float64 that a normal float32 does not have. _MIDDLE is the value of these bits in
# a float64 that lies halfway between two normal float32.
_LOST_BITS = np.int64((1 << 29) - 1)
_MIDDLE = np.int64(1 << 28)
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a JSON object, in which bare NaN and Infinity are allowed; raises ValueError for any other text."""
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    return document


def float32_array(value: Any) -> Array:
    """Converts JSON numbers to float32: each number becomes the float32 that is nearest to its decimal form.

    >>> float(float32_array([7.038531e-26])[0]), float(np.float32(7.038531e-26))
    (7.038530691851209e-26, 7.038531308148791e-26)
    """
    exact = np.array(value, np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    is_suspect = (exact.view(np.int64) & _LOST_BITS) == _MIDDLE
    # Subnormal float32 have fewer bits, so the comparison with _MIDDLE does not find each float64 halfway between two
    # of them. Therefore every number in the subnormal range is compared with its decimal form.
    is_suspect |= (np.abs(exact) < _SMALLEST_NORMAL) & (exact != 0)
    if is_suspect.any():
        flat, result = exact.reshape(-1), rounded.reshape(-1)
        for position in np.flatnonzero(is_suspect).tolist():
            result[position] = _nearest(flat[position], result[position])
        # rounded.reshape(-1) copies if the array has rank 0, so the corrected numbers are only in `result`.
        rounded = result.reshape(exact.shape)
    return rounded


def typed_array(value: Any, description: TensorDescription) -> Array:
    """Converts a JSON answer's output to the array that gRPC would return: same dtype and shape, strings as bytes."""
    dtype = description.dtype
    if dtype == "float32":
        array = float32_array(value)
    elif dtype == "string":
        array = np.array(value, object)
        array = np.array([_bytes(item) for item in array.reshape(-1).tolist()], object).reshape(array.shape)
    else:
        array = np.array(value, np.dtype(dtype))
    return array if array.size else with_shape(array, description.shape)


def with_shape(array: Array, shape: tuple[int | None, ...] | None) -> Array:
    """Adds the missing last dimensions to an array without elements, because empty JSON lists do not show them.

    >>> with_shape(np.empty((0,)), (None, 8)).shape
    (0, 8)
    """
    if shape is None or len(shape) <= array.ndim:
        return array
    return array.reshape(array.shape + tuple(size or 0 for size in shape[array.ndim :]))


def _nearest(exact: np.float64, rounded: np.float32) -> np.float32:
    low = rounded if rounded <= exact else np.nextafter(rounded, np.float32(-np.inf))
    high = np.nextafter(low, np.float32(np.inf))
    # The sum of two neighbouring float32 is exact in float64, which has twice their bits.
    if float(exact) * 2 != float(low) + float(high):
        return rounded
    # The server sent at most nine digits, so repr() of this float64 is the decimal form that the server sent.
    shortest, middle = Decimal(repr(float(exact))), Decimal(float(exact))
    if shortest == middle:
        return rounded
    return low if shortest < middle else high


def key_bytes(key: int | str | dict[str, str]) -> bytes:
    """Returns a key of a vocabulary as gRPC sends it: integers as decimal text."""
    return str(key).encode() if isinstance(key, int) else _bytes(key)


def _bytes(item: str | dict[str, str]) -> bytes:
    return item.encode() if isinstance(item, str) else base64.b64decode(item["b64"])
