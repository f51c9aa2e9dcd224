"""Mutates bytes at random and by protobuf's wire format, so that some changes reach fields deep in a message.

The lengths of the messages around a changed field are then corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

MAX_BYTES = 1 << 16
_MAX_NESTING = 2000
_TELLING_BYTES = b"\x00\x01\x7f\x80\xff\n\x12"
_TELLING_NUMBERS = (0, 1, 2, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**70 - 1)

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutated(source: Random, seeds: Sequence[bytes]) -> bytes:
    """Mutates one of the seeds (valid messages) by one to four random changes, which rarely cancel each other."""
    data = source.choice(seeds)
    for _ in range(source.choice((1, 1, 1, 1, 2, 4))):
        data = source.choice(_MUTATIONS)(source, data, seeds)[:MAX_BYTES]
    return data


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a protobuf message: data[start:body] is its tag and length, data[body:end] its value."""

    start: int
    body: int
    end: int
    number: int
    wire_type: int


def varint(number: int, padding: int = 0) -> bytes:
    """Encodes a varint; padding adds bytes that do not change its value.

    >>> varint(300).hex(), varint(1, padding=2).hex()
    ('ac02', '818000')
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def fields(data: bytes) -> list[Field]:
    """Parses the fields of a protobuf message, up to the first invalid byte.

    >>> [(f.number, f.wire_type, f.end) for f in fields(bytes.fromhex("0801 1202ffff 0d"))]
    [(1, 0, 2), (2, 2, 6)]
    """
    found: list[Field] = []
    at = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        wire_type, size = tag & 7, -1
        if at < 0:
            break
        body = at
        if wire_type == 0:
            _, end = _read_varint(data, at)
            size = end - at if end >= 0 else -1
        elif wire_type == 2:
            size, body = _read_varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        if size < 0 or body < 0 or body + size > len(data):
            break
        at = body + size
        found.append(Field(start, body, at, tag >> 3, wire_type))
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint; returns its number and the position after it; the position is -1 if the varint does not end."""
    number = shift = 0
    while at < len(data) and shift < 70:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7
    return 0, -1


def _flip(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8)) if out else 0):
        out[source.randrange(len(out))] ^= 1 << source.randrange(8)
    return bytes(out)


def _overwrite(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    if out:
        out[source.randrange(len(out))] = source.choice(_TELLING_BYTES)
    return bytes(out)


def _truncate(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return data[: source.randrange(len(data) + 1)]


def _delete(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start, end = sorted(source.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[min(end, start + 16) :]


def _insert(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = source.randrange(len(data) + 1)
    return data[:at] + source.randbytes(source.choice((1, 2, 8, 64))) + data[at:]


def _repeat(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start, end = sorted(source.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:end] * source.choice((1, 2, 50)) + data[end:]


def _splice(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = source.choice(seeds)
    return data[: source.randrange(len(data) + 1)] + other[source.randrange(len(other) + 1) :]


def _within(source: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Changes one field of a message, often a deeply nested one, and corrects the lengths of the messages around it."""
    found = fields(data)
    if not found:
        return source.choice(_BLIND)(source, data, seeds)
    field = source.choice(found)
    held = data[field.body : field.end]
    if field.wire_type == 2 and held and source.random() < 0.75:
        change = _within if fields(held) else source.choice(_BLIND)
        changed = _field(field.number, 2, change(source, held, seeds))
    else:
        changed = source.choice(_FIELD_CHANGES)(source, data, field)
    return data[: field.start] + changed + data[field.end :]


def _field(number: int, wire_type: int, held: bytes) -> bytes:
    return varint(number << 3 | wire_type) + (varint(len(held)) if wire_type == 2 else b"") + held


def _lie_about_length(source: Random, data: bytes, field: Field) -> bytes:
    held = data[field.body : field.end]
    near = max(0, len(held) + source.choice((-2, -1, 1, 2)))
    return varint(field.number << 3 | 2) + varint(source.choice((near, *_TELLING_NUMBERS))) + held


def _set_number(source: Random, data: bytes, field: Field) -> bytes:
    return _field(field.number, 0, varint(source.choice(_TELLING_NUMBERS)))


def _pad_varints(source: Random, data: bytes, field: Field) -> bytes:
    held = data[field.body : field.end]
    tag = varint(field.number << 3 | field.wire_type, padding=source.choice((1, 3, 9, 12)))
    return tag + (varint(len(held), padding=source.choice((0, 4, 9))) if field.wire_type == 2 else b"") + held


def _renumber(source: Random, data: bytes, field: Field) -> bytes:
    number = source.choice((0, field.number ^ 1, field.number + 1, 15, 16, 2**29 - 1, 2**29))
    return _field(number, field.wire_type, data[field.body : field.end])


def _retype(source: Random, data: bytes, field: Field) -> bytes:
    return varint(field.number << 3 | source.randrange(8)) + data[field.body : field.end]


def _drop(source: Random, data: bytes, field: Field) -> bytes:
    return b""


def _double(source: Random, data: bytes, field: Field) -> bytes:
    return data[field.start : field.end] * source.choice((2, 2, 3, 300))


def _bury(source: Random, data: bytes, field: Field) -> bytes:
    """Nests a protobuf field in itself many times, or puts it into many groups that never end."""
    depth = source.choice((1, 10, 99, 101, _MAX_NESTING))
    if source.random() < 0.3:
        return varint(field.number << 3 | 3) * depth + data[field.body : field.end]
    held = data[field.body : field.end]
    for _ in range(depth):
        held = _field(field.number, 2, held)
    return held


def _fill(source: Random, data: bytes, field: Field) -> bytes:
    size = field.end - field.body
    return _field(field.number, field.wire_type, bytes([source.choice(_TELLING_BYTES)]) * size)


_FIELD_CHANGES = (
    _lie_about_length,
    _set_number,
    _pad_varints,
    _renumber,
    _retype,
    _drop,
    _double,
    _bury,
    _fill,
)
_BLIND: tuple[Mutation, ...] = (_flip, _overwrite, _truncate, _delete, _insert, _repeat, _splice)
# Two thirds of the changes are made inside protobuf fields: after changes of random bytes few messages can still be
# parsed.
_MUTATIONS: tuple[Mutation, ...] = (*_BLIND, *(_within,) * len(_BLIND) * 2)
