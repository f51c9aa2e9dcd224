"""FarmHash's Fingerprint64, by which TensorFlow hashes unknown keys to rows, in plain Python for the oracle.

Source: farmhashna::Hash64 of google/farmhash (src/farmhash.cc), which tf.strings.to_hash_bucket_fast uses.

>>> fingerprint64(b"") == 0x9AE16A3B2F90404F
True
"""

from __future__ import annotations

_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_MASK = (1 << 64) - 1


def fingerprint64(data: bytes) -> int:
    """Returns FarmHash's Fingerprint64 of the bytes, an unsigned 64-bit number."""
    size = len(data)
    if size <= 16:
        return _up_to_16(data)
    if size <= 32:
        return _up_to_32(data)
    return _up_to_64(data) if size <= 64 else _longer(data)


def _word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _rotated(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift | value << (64 - shift)) & _MASK


def _shift_mixed(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _mixed(u: int, v: int, factor: int) -> int:
    a = _shift_mixed(((u ^ v) & _MASK) * factor)
    b = _shift_mixed(((v ^ a) & _MASK) * factor)
    return b * factor & _MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    factor = _K2 + 2 * size
    if size >= 8:
        a, b = _word(data, 0) + _K2 & _MASK, _word(data, size - 8)
        return _mixed(_rotated(b, 37) * factor + a & _MASK, (_rotated(a, 25) + b) * factor & _MASK, factor)
    if size >= 4:
        return _mixed(size + (_word(data, 0, 4) << 3), _word(data, size - 4, 4), factor)
    if size:
        y, z = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _shift_mixed(y * _K2 & _MASK ^ z * _K0 & _MASK) * _K2 & _MASK
    return _K2


def _halves(data: bytes, factor: int) -> tuple[int, int, int]:
    size = len(data)
    a, b = _word(data, 0), _word(data, 8)
    a = a * (_K1 if size <= 32 else _K2) & _MASK
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    return a, _rotated(a + b, 43) + _rotated(c, 30) + d & _MASK, a + _rotated(b + _K2, 18) + c & _MASK


def _up_to_32(data: bytes) -> int:
    factor = _K2 + 2 * len(data)
    _, y, z = _halves(data, factor)
    return _mixed(y, z, factor)


def _up_to_64(data: bytes) -> int:
    size = len(data)
    factor = _K2 + 2 * size
    a, y, z = _halves(data, factor)
    z = _mixed(y, z, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g, h = (y + _word(data, size - 32)) * factor & _MASK, (z + _word(data, size - 24)) * factor & _MASK
    return _mixed(_rotated(e + f, 43) + _rotated(g, 30) + h & _MASK, e + _rotated(f + a, 18) + g & _MASK, factor)


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(data, at + offset) for offset in (0, 8, 16, 24))
    a = a + w & _MASK
    b = _rotated(b + a + z, 21)
    total = a + x + y & _MASK
    return total + z & _MASK, b + _rotated(total, 44) + a & _MASK


def _longer(data: bytes) -> int:
    size, seed = len(data), 81
    y = seed * _K1 + 113 & _MASK
    z = _shift_mixed(y * _K2 + 113) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    x = seed * _K2 + _word(data, 0) & _MASK
    last = (size - 1) // 64 * 64
    for at in range(0, last, 64):
        x, y, z, v, w = _block(data, at, (x, y, z), (v, w), factor=_K1, last=False)
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + (size - 1 & 63) & _MASK, w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x, y, z, v, w = _block(data, size - 64, (x, y, z), (v, w), factor=factor, last=True)
    first = _mixed(v[0], w[0], factor) + _shift_mixed(y) * _K0 + z
    return _mixed(first & _MASK, _mixed(v[1], w[1], factor) + x & _MASK, factor)


_Pair = tuple[int, int]


def _block(
    data: bytes, at: int, state: tuple[int, int, int], pairs: tuple[_Pair, _Pair], *, factor: int, last: bool
) -> tuple[int, int, int, _Pair, _Pair]:
    (x, y, z), (v, w), nine = state, pairs, 9 if last else 1
    x = _rotated(x + y + v[0] + _word(data, at + 8), 37) * factor & _MASK
    y = _rotated(y + v[1] + _word(data, at + 48), 42) * factor & _MASK
    x ^= w[1] * nine & _MASK
    y = y + v[0] * nine + _word(data, at + 40) & _MASK
    z = _rotated(z + w[0], 33) * factor & _MASK
    v = _weak(data, at, v[1] * factor & _MASK, x + w[0] & _MASK)
    w = _weak(data, at + 32, z + w[1] & _MASK, y + _word(data, at + 16) & _MASK)
    return z, y, x, v, w
