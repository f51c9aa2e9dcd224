"""Tokens of plain JSON: strings of printable ASCII without escapes, integers of at most 18 digits, lists of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from service.direct.memory import INTS, INTS_2D, OCTETS

# The column of row 0 of what is found, that says whether an integer does not fit 32 bits.
IS_WIDE = 3
UNUSUAL = -1

_MAX_DIGITS = 18
_INT = types.int64
_PAIR: Any = types.Tuple((_INT, _INT))  # type: ignore[no-untyped-call]

_QUOTE, _COMMA, _ZERO, _MINUS, _CLOSE_LIST = ord('"'), ord(","), ord("0"), ord("-"), ord("]")
_SPACE, _TAB, _LINE_FEED, _RETURN = ord(" "), ord("\t"), ord("\n"), ord("\r")
_BACKSLASH, _FIRST_PRINTABLE, _LAST_PRINTABLE = ord("\\"), 0x20, 0x7E


@njit(_INT(OCTETS, _INT), cache=True, nogil=True, inline="always")
def skip(data, at):  # type: ignore[no-untyped-def]
    """Returns where white space ends."""
    while at < len(data) and data[at] <= _SPACE:
        byte = data[at]
        if byte != _SPACE and byte != _LINE_FEED and byte != _RETURN and byte != _TAB:
            return at
        at += 1
    return at


@njit(_INT(OCTETS, _INT, _INT), cache=True, nogil=True, inline="always")
def after(data, at, byte):  # type: ignore[no-untyped-def]
    """Returns what follows a byte and white space around it, or -1 where another one stands there."""
    at = skip(data, at)
    if at >= len(data) or data[at] != byte:
        return np.int64(UNUSUAL)
    return skip(data, at + 1)


@njit(_INT(OCTETS, _INT), cache=True, nogil=True)
def string(data, at):  # type: ignore[no-untyped-def]
    """Returns where the plain string that begins at `at` has its closing quote, or -1."""
    if at >= len(data) or data[at] != _QUOTE:
        return np.int64(UNUSUAL)
    for i in range(at + 1, len(data)):
        byte = data[i]
        if byte == _QUOTE:
            return i
        if byte < _FIRST_PRINTABLE or byte > _LAST_PRINTABLE or byte == _BACKSLASH:
            break
    return np.int64(UNUSUAL)


@njit(_PAIR(OCTETS, _INT), cache=True, nogil=True)
def integer(data, at):  # type: ignore[no-untyped-def]
    """Returns (value, where it ends) of the integer that begins at `at`, or (0, -1)."""
    end = len(data)
    is_negative = at < end and data[at] == _MINUS
    if is_negative:
        at += 1
    begin = at
    value = np.int64(0)
    while at < end:
        digit = np.int64(data[at]) - _ZERO
        if digit < 0 or digit > 9:
            break
        # What is too long overflows, and is refused below.
        value = value * 10 + digit
        at += 1
    # An integer that begins with 0 is 0; -0 is a float.
    if at == begin or at - begin > _MAX_DIGITS or (data[begin] == _ZERO and (at - begin > 1 or is_negative)):
        return np.int64(0), np.int64(UNUSUAL)
    return -value if is_negative else value, at


@njit(_PAIR(OCTETS, _INT, INTS, _INT, INTS_2D), cache=True, nogil=True)
def integers(data, at, out, n, found):  # type: ignore[no-untyped-def]
    """Reads what follows a [ up to its ], appending to the n integers of out.

    Returns:
      (how many there are then, where the list ends), -1 for the end where it is not plain. found[0, IS_WIDE] is set for
      an integer that does not fit 32 bits.
    """
    at = skip(data, at)
    if at < len(data) and data[at] == _CLOSE_LIST:
        return n, at + 1
    while True:
        value, at = integer(data, at)
        if at < 0:
            break
        if value != np.int64(np.int32(value)):
            found[0, IS_WIDE] = 1
        out[n] = value
        n += 1
        at = skip(data, at)
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        if byte == _CLOSE_LIST:
            return n, at
        if byte != _COMMA:
            break
        at = skip(data, at)
    return n, np.int64(UNUSUAL)
