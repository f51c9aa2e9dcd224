"""Reads and writes protobuf's wire format, as far as the messages of TensorFlow Serving need it.

The client has no generated code and no descriptors, so it works beside any version of protobuf, or without one.

Source: protobuf's encoding guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import numpy as np

from embedding_client.types import Array

# Type of the bytes of a protobuf message or field. A field that is read from a memoryview is a view of it, not a copy.
Buffer: TypeAlias = bytes | memoryview

VARINT, BYTES = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_SMALL = 128
# The largest number of bytes in a varint: 64 bits need 10 bytes of 7 bits each.
_MAX_VARINT_BYTES = 10
_MASK64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encodes an integer from 0 to 2**64 - 1 as a varint.

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
def tag(number: int, wire_type: int) -> bytes:
    """Encodes the tag of a field: the field's number and wire type."""
    return varint(number << 3 | wire_type)


def field(number: int, data: bytes) -> bytes:
    """Encodes a field that holds bytes, a string or a message.

    >>> field(1, b"ab")
    b'\\n\\x02ab'
    """
    return tag(number, BYTES) + varint(len(data)) + data


def fields(data: Buffer) -> Iterator[tuple[int, int | Buffer]]:
    """Yields the number and the value of each field in a protobuf message: an int for a varint, else a Buffer.

    >>> list(fields(b"\\x08\\xac\\x02\\x12\\x01x"))
    [(1, 300), (2, b'x')]

    Raises:
      ValueError: the bytes are no protobuf message.
    """
    position, end = 0, len(data)
    while position < end:
        # Varints of one byte, which most are, are read inline: calling read_varint would take longer than the rest of
        # this loop.
        key = data[position]
        position += 1
        if key >= _SMALL:
            key, position = read_varint(data, position - 1)
        wire_type = key & 7
        if wire_type == BYTES or wire_type == VARINT:
            if position < end and data[position] < _SMALL:
                size = data[position]
                position += 1
            else:
                size, position = read_varint(data, position)
            if wire_type == VARINT:
                yield key >> 3, size
                continue
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"a field has the wire type {wire_type}")
        start, position = position, position + size
        if position > end:
            raise ValueError("a message is cut off")
        yield key >> 3, data[start:position]


def int_field(data: Buffer, number: int) -> int:
    """Returns an int64 or enum field of a protobuf message, 0 if the field is missing; raises ValueError.

    >>> int_field(b"\\x08\\x01\\x08\\x02", 1), int_field(b"", 1)
    (2, 0)
    """
    found = 0
    for key, value in fields(data):
        if key == number:
            # If a protobuf message has a field several times, the last value counts.
            found = as_int(value)
    return found


def bytes_field(data: Buffer, number: int) -> Buffer:
    """Returns the last value of a field of bytes, string or message type; b"" if it is missing. Raises ValueError if
    `data` is malformed.
    """
    found: Buffer = b""
    for key, value in fields(data):
        if key == number:
            found = as_bytes(value)
    return found


def repeated_field(data: Buffer, number: int) -> list[Buffer]:
    """Returns all values of a repeated protobuf field of bytes, string or message type; raises ValueError."""
    return [as_bytes(value) for key, value in fields(data) if key == number]


def map_entry(data: Buffer) -> tuple[str, Buffer]:
    """Returns key and value of one entry of a protobuf map from strings to messages; raises ValueError."""
    parts = dict(fields(data))
    return text(as_bytes(parts.get(1, b""))), as_bytes(parts.get(2, b""))


def text(data: Buffer) -> str:
    """Decodes the bytes of a protobuf string field; raises ValueError if the bytes are not UTF-8."""
    return bytes(data).decode()


def as_int(value: int | Buffer) -> int:
    """Converts a varint's value to int64; raises ValueError if the field holds bytes.

    >>> as_int(2**64 - 1)
    -1
    """
    if not isinstance(value, int):
        raise ValueError("a field that is a number holds bytes")
    return value - (1 << 64) if value >> 63 else value


def as_bytes(value: int | Buffer) -> Buffer:
    """Returns the bytes of a protobuf field; raises ValueError if the field is a varint."""
    if isinstance(value, int):
        raise ValueError("a field that is bytes holds a number")
    return value


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Reads the varint at a position in the data; returns its value and the position after it. Raises ValueError."""
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if position >= len(data):
            raise ValueError("a varint is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _SMALL:
            return value & _MASK64, position
    raise ValueError("a varint is too long")


def varints(data: Buffer) -> Array:
    """Decodes N consecutive varints to [N] int64, with numpy instead of a loop.

    >>> varints(varint(300) + varint(2**64 - 1)).tolist()
    [300, -1]

    Raises:
      ValueError: the last varint is cut off, or one is longer than 64 bits.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < _SMALL)
    if ends.size == raw.size:
        return raw.astype(np.int64)
    if raw[-1] >= _SMALL:
        raise ValueError("a varint is cut off")
    starts = np.concatenate((ends[:1] * 0, ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > _MAX_VARINT_BYTES:
        raise ValueError("a varint is too long")
    places = np.arange(raw.size) - np.repeat(starts, sizes)
    parts = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    result: Array = np.bitwise_or.reduceat(parts, starts).view(np.int64)
    return result
