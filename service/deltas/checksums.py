"""CRC-32C of large byte strings in numpy: many lanes side by side, put together by the checksum's linearity.

Some 300 MB/s on one processor, where a loop over bytes does 10.

Source: Castagnoli's polynomial as in RFC 3720, appendix B.4; the operators that stand for zeros behind a string are
those of zlib's crc32_combine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from service.core.types import Array

# Bits reversed.
_POLYNOMIAL = 0x82F63B78
# So many lanes go side by side where there are so many bytes; powers of two.
_LANES = ((4096, 1 << 20), (256, 1 << 13))
# At a time, for the lanes are copied to stand side by side.
_PIECE_BYTES = 16 << 20


def crc32c(data: Any, crc: int = 0) -> int:
    """Returns the checksum of what lies in a buffer, going on from that of what came before.

    >>> hex(crc32c(b"123456789")), hex(crc32c(b"6789", crc32c(b"12345")))
    ('0xe3069283', '0xe3069283')
    """
    octets = np.frombuffer(data, np.uint8)
    state = crc ^ 0xFFFFFFFF
    for begin in range(0, octets.size, _PIECE_BYTES):
        state = _continued(octets[begin : begin + _PIECE_BYTES], state)
    return state ^ 0xFFFFFFFF


def _continued(octets: Array, state: int) -> int:
    for lanes, least in _LANES:
        if octets.size >= least:
            whole = octets.size // lanes // 2 * 2 * lanes
            state = _side_by_side(octets[:whole].reshape(lanes, -1), state)
            octets = octets[whole:]
    table = _octet_table()
    for octet in octets.tobytes():
        state = state >> 8 ^ table[state & 0xFF ^ octet]
    return state


def _side_by_side(lanes: Array, state: int) -> int:
    words = np.ascontiguousarray(lanes.view("<u2").T)
    states = np.zeros(lanes.shape[0], "<u4")
    states[0] = state
    low_halves = states.view("<u2")[::2]
    table, index, change = _word_table(), np.empty(states.size, np.uint16), np.empty_like(states)
    for column in words:
        np.bitwise_xor(low_halves, column, out=index)
        np.right_shift(states, 16, out=states)
        np.bitwise_xor(states, np.take(table, index, out=change, mode="clip"), out=states)
    # Neighbours are put together until one is left: the left one goes on over as many zeros as the right one is long.
    operator = _zeros(lanes.shape[1])
    while states.size > 1:
        states = _applied(operator, states[::2]) ^ states[1::2]
        operator = _applied(operator, operator)
    return int(states[0])


@cache
def _octet_table() -> tuple[int, ...]:
    # By the next byte: what eight shifts make of it.
    return tuple(_shifted(np.arange(1 << 8, dtype=np.uint32), 8).tolist())


@cache
def _word_table() -> Array:
    return _shifted(np.arange(1 << 16, dtype=np.uint32), 16)


def _shifted(values: Array, bits: int) -> Array:
    for _ in range(bits):
        values = values >> np.uint32(1) ^ np.where(values & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    return values


@cache
def _zeros(num_bytes: int) -> Array:
    # [32] what becomes of each bit of the state over so many zeros.
    power = _shifted(np.uint32(1) << np.arange(32, dtype=np.uint32), 8)
    result = np.uint32(1) << np.arange(32, dtype=np.uint32)
    while num_bytes:
        if num_bytes & 1:
            result = _applied(power, result)
        power = _applied(power, power)
        num_bytes >>= 1
    return result


def _applied(operator: Array, states: Array) -> Array:
    result = np.zeros_like(states)
    for bit in range(32):
        result ^= np.where(states >> np.uint32(bit) & np.uint32(1), operator[bit], np.uint32(0))
    return result
