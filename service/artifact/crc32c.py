"""Computes CRC-32C checksums: in the native core by the processor's own instruction, without the core in numpy.

Source: RFC 3720 appendix B.4 (CRC-32C); tensorflow/core/lib/hash/crc32c.h (TensorFlow 2.21) for the mask; crc32_combine
of zlib for the lanes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from service.native_tables import NATIVE_TABLES
from service.types import Array

_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF
# Size of the pieces ("lanes") into which numpy_crc32c cuts the bytes; it computes the checksums of all lanes side by
# side, one byte of each lane per step.
_LANE_BYTES = 1024


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
