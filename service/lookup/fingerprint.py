"""FarmHash's Fingerprint64, compiled by numba: the hash behind TensorFlow's OOV buckets, the same on every machine.

>>> import numpy as np
>>> int(fingerprint64(np.frombuffer(b"hello", np.uint8), 0, 5))
13009744463427800296

All arithmetic is modulo 2**64; every constant is a uint64, because numba takes a uint64 and a plain integer to float64.

Source: google/farmhash 0d859a8, src/farmhash.cc, farmhashna::Hash64.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_U64 = types.uint64
_PAIR = types.UniTuple(_U64, 2)  # type: ignore[no-untyped-call]

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_SEED = np.uint64(81)
_1, _2, _3, _8, _9 = (np.uint64(n) for n in (1, 2, 3, 8, 9))
_18, _21, _25, _30, _33, _37 = (np.uint64(n) for n in (18, 21, 25, 30, 33, 37))
_42, _43, _44, _47, _63, _64, _113, _255 = (np.uint64(n) for n in (42, 43, 44, 47, 63, 64, 113, 255))


@njit(_U64(BYTES, types.int64), cache=True, nogil=True)
def _fetch32(data, at):  # type: ignore[no-untyped-def]
    word = np.uint64(0)
    for i in range(4):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(_U64(BYTES, types.int64), cache=True, nogil=True)
def _fetch(data, at):  # type: ignore[no-untyped-def]
    word = np.uint64(0)
    for i in range(8):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(_U64(_U64, _U64), cache=True, nogil=True)
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return word >> bits | word << (_64 - bits)


@njit(_U64(_U64), cache=True, nogil=True)
def _shift_mix(word):  # type: ignore[no-untyped-def]
    return word ^ word >> _47


@njit(_U64(_U64, _U64, _U64), cache=True, nogil=True)
def _join(u, v, mul):  # type: ignore[no-untyped-def]
    return _shift_mix((_shift_mix((u ^ v) * mul) ^ v) * mul) * mul


@njit(_U64(BYTES, types.int64, types.int64), cache=True, nogil=True)
def _up_to_16(data, at, length):  # type: ignore[no-untyped-def]
    size = np.uint64(length)
    mul = _K2 + size * _2
    if length >= 8:
        a = _fetch(data, at) + _K2
        b = _fetch(data, at + length - 8)
        return _join(_rotate(b, _37) * mul + a, (_rotate(a, _25) + b) * mul, mul)
    if length >= 4:
        return _join(size + (_fetch32(data, at) << _3), _fetch32(data, at + length - 4), mul)
    if length > 0:
        y = np.uint64(data[at]) + (np.uint64(data[at + (length >> 1)]) << _8)
        z = size + (np.uint64(data[at + length - 1]) << _2)
        return _shift_mix(y * _K2 ^ z * _K0) * _K2
    return _K2


@njit(_U64(BYTES, types.int64, types.int64), cache=True, nogil=True)
def _up_to_32(data, at, length):  # type: ignore[no-untyped-def]
    mul = _K2 + np.uint64(length) * _2
    a = _fetch(data, at) * _K1
    b = _fetch(data, at + 8)
    c = _fetch(data, at + length - 8) * mul
    d = _fetch(data, at + length - 16) * _K2
    return _join(_rotate(a + b, _43) + _rotate(c, _30) + d, a + _rotate(b + _K2, _18) + c, mul)


@njit(_U64(BYTES, types.int64, types.int64), cache=True, nogil=True)
def _up_to_64(data, at, length):  # type: ignore[no-untyped-def]
    mul = _K2 + np.uint64(length) * _2
    end = at + length
    a = _fetch(data, at) * _K2
    b = _fetch(data, at + 8)
    c = _fetch(data, end - 8) * mul
    d = _fetch(data, end - 16) * _K2
    y = _rotate(a + b, _43) + _rotate(c, _30) + d
    z = _join(y, a + _rotate(b + _K2, _18) + c, mul)
    e = _fetch(data, at + 16) * mul
    f = _fetch(data, at + 24)
    g = (y + _fetch(data, end - 32)) * mul
    h = (z + _fetch(data, end - 24)) * mul
    return _join(_rotate(e + f, _43) + _rotate(g, _30) + h, e + _rotate(f + a, _18) + g, mul)


@njit(_PAIR(BYTES, types.int64, _U64, _U64), cache=True, nogil=True)
def _weak_32(data, at, a, b):  # type: ignore[no-untyped-def]
    a = a + _fetch(data, at)
    z = _fetch(data, at + 24)
    b = _rotate(b + a + z, _21)
    c = a
    a = a + _fetch(data, at + 8) + _fetch(data, at + 16)
    b = b + _rotate(a, _44)
    return a + z, b + c


@njit(_U64(BYTES, types.int64, types.int64), cache=True, nogil=True)
def fingerprint64(data, at, length):  # type: ignore[no-untyped-def]
    """Returns the uint64 fingerprint of length bytes from position at of a uint8 array."""
    if length <= 16:
        return _up_to_16(data, at, length)
    if length <= 32:
        return _up_to_32(data, at, length)
    if length <= 64:
        return _up_to_64(data, at, length)
    # Blocks of 64 bytes, the last of which overlaps the one before so that it ends with the string.
    rest = np.uint64(length - 1) & _63
    end = at + (length - 1) // 64 * 64
    x = _SEED * _K2 + _fetch(data, at)
    y = _SEED * _K1 + _113
    z = _shift_mix(y * _K2 + _113) * _K2
    v0 = v1 = w0 = w1 = np.uint64(0)
    for s in range(at, end, 64):
        x = _rotate(x + y + v0 + _fetch(data, s + 8), _37) * _K1 ^ w1
        y = _rotate(y + v1 + _fetch(data, s + 48), _42) * _K1 + v0 + _fetch(data, s + 40)
        z = _rotate(z + w0, _33) * _K1
        v0, v1 = _weak_32(data, s, v1 * _K1, x + w0)
        w0, w1 = _weak_32(data, s + 32, z + w1, y + _fetch(data, s + 16))
        z, x = x, z
    mul = _K1 + ((z & _255) << _1)
    s = at + length - 64
    w0 = w0 + rest
    v0 = v0 + w0
    w0 = w0 + v0
    x = _rotate(x + y + v0 + _fetch(data, s + 8), _37) * mul ^ w1 * _9
    y = _rotate(y + v1 + _fetch(data, s + 48), _42) * mul + v0 * _9 + _fetch(data, s + 40)
    z = _rotate(z + w0, _33) * mul
    v0, v1 = _weak_32(data, s, v1 * mul, x + w0)
    w0, w1 = _weak_32(data, s + 32, z + w1, y + _fetch(data, s + 16))
    return _join(_join(v0, w0, mul) + _shift_mix(y) * _K0 + x, _join(v1, w1, mul) + z, mul)
