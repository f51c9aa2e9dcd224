"""Computes the hashes of TensorFlow's formats: CRC-32C checksums of bytes, and Fingerprint64 of unknown keys.

The native core computes CRC-32C by the processor's own instruction; without the core numpy does. TensorFlow assigns
unknown keys to OOV buckets by FarmHash's Fingerprint64, whose arithmetic is modulo 2**64.

>>> fingerprint64(b"hello")
13009744463427800296

Source: RFC 3720 appendix B.4 (CRC-32C); tensorflow/core/lib/hash/crc32c.h (TensorFlow 2.21) for the mask; crc32_combine
of zlib for the lanes; google/farmhash 0d859a8, src/farmhash.cc, farmhashna::Hash64.
"""

from __future__ import annotations

from functools import cache
from typing import IO, Any

import numpy as np

from service.native_tables import NATIVE_TABLES
from service.types import Array

_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF
# Size of the pieces ("lanes") into which numpy_crc32c cuts the bytes; it computes the checksums of all lanes side by
# side, one byte of each lane per step.
_LANE_BYTES = 1024
_CHUNK_BYTES = 1 << 20


def numpy_crc32c(octets: Array, before: int) -> int:
    """Returns the CRC-32C of [N] uint8, continued from `before`, the CRC of the bytes before (0: none)."""
    num_lanes = octets.size // _LANE_BYTES
    lanes = octets[: num_lanes * _LANE_BYTES].reshape(num_lanes, _LANE_BYTES)
    crc = before
    if num_lanes:
        # CRCs are linear, so the checksum of two pieces in a row is (checksum of the first, shifted by the second's
        # length) XOR (checksum of the second).
        each = _ALL ^ _added(np.full(num_lanes, _ALL, np.uint32), lanes)
        shifted = _shifted_past_a_lane()
        for lane in each.tolist():
            crc = lane ^ int(np.bitwise_xor.reduce(shifted[[bit for bit in range(32) if crc >> bit & 1]]))
    rest = octets[num_lanes * _LANE_BYTES :]
    return _ALL ^ int(_added(np.array([crc ^ _ALL], np.uint32), rest[None])[0])


def _added(states: Array, lanes: Array) -> Array:
    """Returns the [N] states of N CRCs after each has read the L bytes of its own lane; lanes: [N, L]."""
    table = _table()
    for octets in lanes.T:
        states = table[(states ^ octets) & 255] ^ states >> 8
    return states


@cache
def _table() -> Array:
    """Returns the usual CRC table: for each of the 256 byte values, the CRC state that follows state 0."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ np.uint32(_POLYNOMIAL), states >> 1)
    return states


@cache
def _shifted_past_a_lane() -> Array:
    """Returns, for each checksum with a single bit set, the checksum after a lane (piece) of zero bytes, [32]."""
    return _added(np.uint32(1) << np.arange(32, dtype=np.uint32), np.zeros((32, _LANE_BYTES), np.uint8))


# The native core's crc32c is preferred over numpy's: it is faster, and releases Python's interpreter lock while it
# computes.
crc32c = NATIVE_TABLES.crc32c if NATIVE_TABLES else numpy_crc32c


def crc32c_of(data: Any, before: int = 0) -> int:
    """Returns the CRC-32C of a buffer, continued from the checksum of the bytes before it.

    >>> hex(crc32c_of(b"123456789")), hex(crc32c_of(b"6789", crc32c_of(b"12345")))
    ('0xe3069283', '0xe3069283')
    """
    return int(crc32c(np.frombuffer(data, np.uint8), before))


def crc32c_in(file: IO[bytes], offset: int, nbytes: int) -> int | None:
    """Returns the CRC-32C of a range of a file; None if the file ends before the range does."""
    found = 0
    file.seek(offset)
    while nbytes and (chunk := file.read(min(nbytes, _CHUNK_BYTES))):
        found = crc32c_of(chunk, found)
        nbytes -= len(chunk)
    return None if nbytes else found


def masked_of(data: bytes) -> int:
    """Returns the masked CRC-32C of bytes.

    >>> hex(masked_of(b"123456789"))
    '0xc78ab0e5'
    """
    return masked(crc32c_of(data))


def masked(crc: int) -> int:
    """Masks a CRC-32C as checkpoints and TFRecord files store it.

    >>> hex(masked(0xE3069283))
    '0xc78ab0e5'
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F
_SEED = 81
_MAX = 2**64 - 1


def fingerprint64(text: bytes) -> int:
    if len(text) <= 16:
        return _up_to_16(text)
    if len(text) <= 32:
        return _up_to_32(text)
    if len(text) <= 64:
        return _up_to_64(text)
    # Texts of more than 64 bytes are hashed in blocks of 64 bytes. The last block ends where the text ends, so it may
    # overlap the block before it.
    x = (_SEED * _K2 + _fetch(text, 0)) & _MAX
    y = (_SEED * _K1 + 113) & _MAX
    z = _shift_mix(y * _K2 + 113) * _K2 & _MAX
    v = w = 0, 0
    for at in range(0, (len(text) - 1) // 64 * 64, 64):
        x = _rotate(x + y + v[0] + _fetch(text, at + 8), 37) * _K1 & _MAX ^ w[1]
        y = _rotate(y + v[1] + _fetch(text, at + 48), 42) * _K1 + v[0] + _fetch(text, at + 40) & _MAX
        z = _rotate(z + w[0], 33) * _K1 & _MAX
        v = _weak_32(text, at, v[1] * _K1, x + w[0])
        w = _weak_32(text, at + 32, z + w[1], y + _fetch(text, at + 16))
        z, x = x, z
    mul = _K1 + ((z & 255) << 1) & _MAX
    at = len(text) - 64
    w0 = w[0] + (len(text) - 1 & 63)
    v0 = v[0] + w0
    w0 = w0 + v0
    x = _rotate(x + y + v0 + _fetch(text, at + 8), 37) * mul & _MAX ^ w[1] * 9 & _MAX
    y = _rotate(y + v[1] + _fetch(text, at + 48), 42) * mul + v0 * 9 + _fetch(text, at + 40) & _MAX
    z = _rotate(z + w0, 33) * mul & _MAX
    v = _weak_32(text, at, v[1] * mul, x + w0)
    w = _weak_32(text, at + 32, z + w[1], y + _fetch(text, at + 16))
    return _join(_join(v[0], w[0], mul) + _shift_mix(y) * _K0 + x, _join(v[1], w[1], mul) + z, mul)


def _fetch(text: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(text[at : at + size], "little")


def _rotate(word: int, bits: int) -> int:
    word &= _MAX
    return (word >> bits | word << 64 - bits) & _MAX


def _shift_mix(word: int) -> int:
    word &= _MAX
    return word ^ word >> 47


def _join(u: int, v: int, mul: int) -> int:
    return _shift_mix((_shift_mix((u & _MAX ^ v & _MAX) * mul) ^ v & _MAX) * mul) * mul & _MAX


def _up_to_16(text: bytes) -> int:
    size = len(text)
    mul = _K2 + size * 2
    if size >= 8:
        a = _fetch(text, 0) + _K2
        b = _fetch(text, size - 8)
        return _join(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if size >= 4:
        return _join(size + (_fetch(text, 0, 4) << 3), _fetch(text, size - 4, 4), mul)
    if size > 0:
        y = text[0] + (text[size >> 1] << 8)
        z = size + (text[size - 1] << 2)
        return _shift_mix(y * _K2 & _MAX ^ z * _K0 & _MAX) * _K2 & _MAX
    return _K2


def _up_to_32(text: bytes) -> int:
    mul = _K2 + len(text) * 2
    a = _fetch(text, 0) * _K1
    b = _fetch(text, 8)
    c = _fetch(text, len(text) - 8) * mul
    d = _fetch(text, len(text) - 16) * _K2
    return _join(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul)


def _up_to_64(text: bytes) -> int:
    size = len(text)
    mul = _K2 + size * 2
    a = _fetch(text, 0) * _K2
    b = _fetch(text, 8)
    c = _fetch(text, size - 8) * mul
    d = _fetch(text, size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _join(y, a + _rotate(b + _K2, 18) + c, mul)
    e = _fetch(text, 16) * mul
    f = _fetch(text, 24)
    g = (y + _fetch(text, size - 32)) * mul
    h = (z + _fetch(text, size - 24)) * mul
    return _join(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


def _weak_32(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    a = a + _fetch(text, at)
    z = _fetch(text, at + 24)
    b = _rotate(b + a + z, 21)
    c = a
    a = a + _fetch(text, at + 8) + _fetch(text, at + 16)
    b = b + _rotate(a, 44)
    return a + z & _MAX, b + c & _MAX
