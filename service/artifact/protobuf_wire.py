"""Encodes and decodes varints, tags and lengths of protobuf's wire format, for messages written without the library.

Source: protobuf's encoding guide, "Base 128 Varints" and "Length-Delimited Records".
"""

from __future__ import annotations

from functools import cache

_SMALL = 128


def varint(value: int) -> bytes:
    """Encodes an integer, 0 <= value < 2**64, as a protobuf varint.

    >>> varint(1), varint(300)
    (b'\\x01', b'\\xac\\x02')
    """
    if value < _SMALL:
        return bytes((value,))
    out = bytearray()
    while value >= _SMALL:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def tag(field: int, wire_type: int) -> bytes:
    """Encodes the tag of a protobuf field; wire_type 0 is a varint, 2 a length-delimited value."""
    return varint(field << 3 | wire_type)


def length_prefix(data: bytes, position: int) -> tuple[int | None, int]:
    """Reads a varint of up to ten bytes.

    Returns its value and the next position; the value is None if the data end within the varint, or it is longer.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            return None, position
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _SMALL:
            return value, position
    return None, position
