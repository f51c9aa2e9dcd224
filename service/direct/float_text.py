"""Writes float32 as JSON text: the shortest digits that read back as the same number, in orjson's layout.

A float is c 2^q. Scaled by a power of ten to 10^6 < x < 2 10^8, half the distance to its neighbours is h, between 0.5
and 5; so at most one multiple of ten lies within h of x, and where there is one, its digits are the shortest, else
those of the integer next to x. In double precision x and h are known to 2^-24 or better; where a comparison is closer
than _UNSURE, and for powers of two, whose neighbours are not equally far, _exact decides with integers.

Source: R. Giulietti, "The Schubfach way to render doubles" (2021), for the interval and for _exact; orjson 3.13 for
where an exponent is written.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit, types

from service.direct.memory import float32_of, leading_zeros, store_8_bytes, store_byte

# The longest are "-0.0000012345678" and a comma; stores of eight bytes reach beyond what they are for.
MAX_CHARS = 18
SLACK = 32

_U: Any = np.uint64
_INT = types.int64
_WORD = types.uint64

# Biased exponents of float32, with and without the implicit bit.
_EXPONENTS = 256
_SHORTEST_WITH_EXPONENT, _SHORTEST_WITHOUT = 13, -6
_UNSURE = 2.0**-21

_LOW = _U(0xFFFFFFFF)
_MANTISSA, _IMPLICIT, _SIGN, _SPECIAL = _U(0x7FFFFF), _U(0x800000), _U(31), _U(255)
_ZEROS = _U(int.from_bytes(b"0" * 8, "little"))
_ZERO_POINT = _U(int.from_bytes(b"0.000000", "little"))
_POWERS = np.array([1, 10, 100], np.uint64)


def _log10_of_power(q: int) -> int:
    # floor(log10(2^q))
    return (q * 1262611) >> 22


def _scales() -> tuple[Any, Any, Any]:
    # By biased exponent: 10^-k, half the distance to the next float times 10^-k, and k.
    powers, halves, ks = [], [], []
    for biased in range(_EXPONENTS):
        q = max(biased, 1) - 150
        k = _log10_of_power(q)
        scale = Fraction(10) ** -k
        powers.append(float(scale))
        halves.append(float(scale * Fraction(2) ** (q - 1)))
        ks.append(k)
    return np.array(powers), np.array(halves), np.array(ks, np.int64)


def _multipliers() -> Any:
    # 10^n as 64 bits, rounded up, for n from _FIRST on.
    words = []
    for n in range(_FIRST, 46):
        shift = ((n * 1741647) >> 19) - 63
        words.append(int(Fraction(10) ** n / Fraction(2) ** shift) + 1)
    return np.array(words, np.uint64)


_FIRST = -31
_SCALES, _HALVES, _KS = _scales()
_MULTIPLIERS = _multipliers()


@njit(_WORD(_WORD, _WORD), cache=True, nogil=True, inline="always")
def _product(multiplier, factor):  # type: ignore[no-untyped-def]
    # The upper 32 bits of their product / 2^32; the last one also says whether anything was cut off.
    low = (multiplier & _LOW) * factor
    high = (multiplier >> _U(32)) * factor + (low >> _U(32))
    return (high >> _U(32)) | _U((high & _LOW) > _U(1))


_PAIR: Any = types.Tuple((_WORD, _INT))  # type: ignore[no-untyped-call]


@njit(_PAIR(_WORD), cache=True, nogil=True)
def _exact(bits):  # type: ignore[no-untyped-def]
    # Returns (digits, k): a positive float is digits 10^k. Schubfach, for 24 bits of mantissa.
    fraction = bits & _MANTISSA
    biased = np.int64(bits >> _U(23))
    c = fraction if biased == 0 else fraction | _IMPLICIT
    q = (1 if biased == 0 else biased) - 150
    # Below a power of two the neighbour is half as far.
    is_closer = _U(fraction == _U(0) and biased > 1)
    is_odd = c & _U(1)
    k = (q * 1262611 - np.int64(is_closer) * 524031) >> 22
    shift = _U(q + ((-k * 1741647) >> 19) + 1)
    multiplier = _MULTIPLIERS[-k - _FIRST]
    center = c << _U(2)
    scaled = _product(multiplier, center << shift)
    # An odd mantissa's interval has no ends of its own.
    lower = _product(multiplier, (center - _U(2) + is_closer) << shift) + is_odd
    upper = _product(multiplier, (center + _U(2)) << shift) - is_odd
    s = scaled >> _U(2)
    tens = s // _U(10)
    if tens:
        is_below_inside = lower <= _U(40) * tens
        is_above_inside = _U(40) * tens + _U(40) <= upper
        if is_below_inside != is_above_inside:
            return tens + _U(is_above_inside), k + 1
    is_below_inside = lower <= _U(4) * s
    is_above_inside = _U(4) * s + _U(4) <= upper
    if is_below_inside != is_above_inside:
        return s + _U(is_above_inside), k
    middle = _U(4) * s + _U(2)
    return s + _U(scaled > middle or (scaled == middle and s & _U(1) == _U(1))), k


@njit(_PAIR(_WORD), cache=True, nogil=True)
def _rarer(bits):  # type: ignore[no-untyped-def]
    # Returns what write needs of a positive float that it is not sure of: (nine digits, exponent of the first).
    digits, k = _exact(bits)
    exponent = k + 8
    while digits < _U(100_000_000):
        digits *= _U(10)
        exponent -= 1
    return digits, exponent


@njit(_INT(_WORD, _INT, _INT, _INT, _INT), cache=True, nogil=True)
def _with_exponent(eight, first, count, exponent, p):  # type: ignore[no-untyped-def]
    store_byte(p, first)
    p += 1
    if count > 1:
        store_byte(p, 46)
        store_8_bytes(p + 1, eight)
        p += count
    store_byte(p, 101)
    store_byte(p + 1, 45 if exponent < 0 else 43)
    # The one that is written with a sign only where it is negative, and two digits where it has them.
    p += 2
    size = abs(exponent)
    if size >= 10:
        store_byte(p, 48 + size // 10)
        p += 1
    store_byte(p, 48 + size % 10)
    return p + 1


@njit(_INT(_WORD, _INT), cache=True, nogil=True, error_model="numpy", inline="always")
def write(bits, p):  # type: ignore[no-untyped-def]
    """Writes a float32 at an address; returns where it ends, or -1 for NaN and infinity.

    Args:
      bits: of the float, in the lower half.
      p: where MAX_CHARS and SLACK bytes may be written.
    """
    biased = np.int64((bits >> _U(23)) & _SPECIAL)
    x = np.float64(float32_of(bits & _U(0x7FFFFFFF))) * _SCALES[biased]
    half = _HALVES[biased]
    tens = np.floor(x * 0.1 + 0.5)
    distance = abs(tens * 10.0 - x)
    whole = np.floor(x)
    rest = x - whole
    is_short = distance < half
    digits = _U(np.int64(tens if is_short else whole + (1.0 if rest > 0.5 else 0.0)))
    is_unsure = (abs(distance - half) < _UNSURE) | (abs(rest - 0.5) < _UNSURE) | ((bits & _MANTISSA) == _U(0))
    store_byte(p, 45)
    p += np.int64(bits >> _SIGN)
    if is_unsure or digits < _U(1_000_000) or biased == 255:
        if bits & _U(0x7FFFFFFF) == _U(0):
            store_8_bytes(p, _ZERO_POINT)
            return p + 3
        if biased == 255:
            return np.int64(-1)
        digits, exponent = _rarer(bits & _U(0x7FFFFFFF))
    else:
        missing = _U(digits < _U(100_000_000)) + _U(digits < _U(10_000_000))
        digits *= _POWERS[missing]
        exponent = _KS[biased] + np.int64(is_short) + 8 - np.int64(missing)
    first = digits // _U(100_000_000)
    # Eight digits at once: four and four, two by two, one by one, each in a byte of its own, the first one lowest.
    rest_digits = digits - first * _U(100_000_000)
    upper = rest_digits // _U(10_000)
    fours = upper | ((rest_digits - upper * _U(10_000)) << _U(32))
    upper = ((fours * _U(10486)) >> _U(20)) & _U(0x7F0000007F)
    twos = upper | ((fours - _U(100) * upper) << _U(16))
    upper = ((twos * _U(103)) >> _U(10)) & _U(0x000F000F000F000F)
    ones = upper | ((twos - _U(10) * upper) << _U(8))
    count = np.int64(9) - np.int64(leading_zeros(ones) >> _U(3))
    eight = ones | _ZEROS
    letter = np.int64(first) + 48
    if exponent < 0 and exponent >= _SHORTEST_WITHOUT:
        store_8_bytes(p, _ZERO_POINT)
        p += 1 - exponent
        store_byte(p, letter)
        store_8_bytes(p + 1, eight)
        return p + count
    if exponent >= 0 and exponent < _SHORTEST_WITH_EXPONENT:
        store_byte(p, letter)
        store_8_bytes(p + 1, eight)
        store_8_bytes(p + 9, _ZEROS)
        store_byte(p + exponent + 1, 46)
        if count <= exponent + 1:
            store_byte(p + exponent + 2, 48)
            return p + exponent + 3
        store_8_bytes(p + exponent + 2, eight >> _U(8 * exponent))
        return p + count + 1
    return _with_exponent(eight, letter, count, exponent, p)
