"""Converts Python values and lists to arrays of dtypes that requests can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from embedding_client.errors import invalid
from embedding_client.types import Array

_STRINGS = (str, bytes)
_INTS = (int, np.integer)
_FLOATS = (float, np.floating)
_BOOLS = (bool, np.bool_)


def leaf_array(what: str, flat: list[Any]) -> Array:
    """Returns [N] values of one dtype: int64, float32, bool, or object (bytes) for strings. An empty list is int64.

    Args:
      what: names the values in error texts.

    Raises:
      InvalidRequest: the values are of several kinds, or of a kind that no request can hold.
    """
    types = set(map(type, flat))
    if types <= {int}:
        return int64_array(what, flat)
    if _all(types, _STRINGS):
        return _encoded(what, flat)
    if _all(types, _BOOLS):
        return np.array(flat, np.bool_)
    if not any(issubclass(kind, _BOOLS) for kind in types):
        if _all(types, _INTS):
            return int64_array(what, flat)
        if _all(types, _INTS + _FLOATS):
            return np.array(flat, np.float32)
    names = ", ".join(sorted(kind.__name__ for kind in types))
    raise invalid(f"{what}: expected integers, floats, booleans or strings, all of one kind, got {names}.")


def to_array(what: str, value: Any) -> Array:
    """Converts a caller's value to an array of any rank that can be sent: native byte order, strings as bytes objects.

    A numpy array keeps its dtype; a list gets the dtype of leaf_array.

    Raises:
      InvalidRequest: rows differ in length, or a value can not be sent.
    """
    is_typed = isinstance(value, np.ndarray)
    if not is_typed:
        value = _objects(what, value)
    kind = value.dtype.kind
    if kind in "biufc":
        native: Array = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
        return native
    if kind not in "OSU":
        raise invalid(f"{what}: dtype {value.dtype} can not be sent.")
    if is_typed and not value.size:
        # An empty array of strings becomes an empty array of objects, the dtype of strings; an empty list has no dtype,
        # and becomes int64 below.
        return np.empty(value.shape, object)
    return leaf_array(what, value.reshape(-1).tolist()).reshape(value.shape)


def _objects(what: str, value: Any) -> Array:
    unequal = f"{what}: lists of unequal length make no dense tensor."
    try:
        array = np.array(value, object)
    except ValueError as error:
        raise invalid(unequal) from error
    # For lists of unequal lengths, numpy mostly returns an array whose elements are lists, and raises no ValueError.
    if any(issubclass(kind, (list, tuple)) for kind in set(map(type, array.reshape(-1).tolist()))):
        raise invalid(unequal)
    return array


def _all(types: set[type], kinds: tuple[type, ...]) -> bool:
    return all(issubclass(kind, kinds) for kind in types)


def int64_array(what: str, integers: list[Any] | Array) -> Array:
    """Converts integers to int64; raises InvalidRequest if one does not fit."""
    try:
        return np.array(integers.tolist() if isinstance(integers, np.ndarray) else integers, np.int64)
    except OverflowError as error:
        raise invalid(f"{what}: a value does not fit int64.") from error


def _encoded(what: str, flat: list[Any]) -> Array:
    array = np.empty(len(flat), object)
    try:
        array[:] = [item.encode() if isinstance(item, str) else bytes(item) for item in flat]
    except UnicodeEncodeError as error:
        raise invalid(f"{what}: a string holds a lone surrogate, which UTF-8 can not write.") from error
    return array
