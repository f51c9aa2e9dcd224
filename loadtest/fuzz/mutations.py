"""Mutates requests at random: bytes, fields of protobuf messages, and the structure, text or bytes of JSON documents.

After a changed protobuf field, the lengths of the messages around it are corrected, so that some changes reach deep.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from loadtest.wire import varint

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


def mutated_binary(source: Random, head: bytes, tensors: bytes) -> tuple[bytes, bytes]:
    """Mutates a body's JSON, its binary tensors, or both."""
    which = source.randrange(3)
    return mutated(source, [head]) if which else head, mutated(source, [tensors]) if which != 1 else tensors


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a protobuf message: data[start:body] is its tag and length, data[body:end] its value."""

    start: int
    body: int
    end: int
    number: int
    wire_type: int


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


_FIELD_CHANGES = (_lie_about_length, _set_number, _pad_varints, _renumber, _retype, _drop, _double, _bury, _fill)
_BLIND: tuple[Mutation, ...] = (_flip, _overwrite, _truncate, _delete, _insert, _repeat, _splice)
# Two thirds of the changes are made inside protobuf fields: after changes of random bytes few messages can still be
# parsed.
_MUTATIONS: tuple[Mutation, ...] = (*_BLIND, *(_within,) * len(_BLIND) * 2)


# Tokens, most of them invalid in JSON, that are written without quotes in place of a value.
_TOKENS = (
    *"NaN -Infinity Infinity 1e400 -0 -0.0 1e-400 01 1. +1 0x10 9223372036854775807 9223372036854775808".split(),
    *("-9223372036854775809", "1" * 400, "1." + "7" * 2000, '"\\ud800"', '"\\u0000"', '"\\x"', '"\t"', "tru", "'a'"),
    *("{}{}", "/*x*/1", ""),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 0.5, 1e308, "", "a", "0", "\u00e9\u4e2d\U0001f600", "\x00"),
    *("x" * 5000, [], {}, [[]], [{}], {"b64": "AAA="}, {"b64": "***"}, {"b64": 1}, {"b64": "AAAA", "more": 1}),
    *([1, "a", None, [2]], [[1], [1, 2], [[3]]], list(range(300))),
)
_KEYS = ("", "signature_name", "instances", "inputs", "features", "weights", "ids", "examples", "context", "b64", "x")
_MARK = "\u2603 a token goes here \u2603"
_MARKS = re.compile("|".join(re.escape(json.dumps(_MARK, ensure_ascii=ascii)) for ascii in (True, False)))
_MAX_DEPTH = 100_000
# Mutations that repeat a value are applied only to JSON documents below this size, because larger ones would become
# gigabytes.
_SMALL_BYTES = 400


def mutated_json(source: Random, documents: Sequence[Any]) -> tuple[bytes, dict[str, str]]:
    """Makes a request body from one of the JSON documents by random changes; returns the body and its headers.

    The changes are to structure, text or bytes; sometimes the body is compressed.
    """
    document = copy.deepcopy(source.choice(documents))
    kind = source.random()
    if kind < 0.6:
        for _ in range(source.choice((1, 1, 2, 4))):
            document = _restructured(source, document, documents)
    text = json.dumps(document, ensure_ascii=source.random() < 0.5)
    text = _MARKS.sub(lambda mark: source.choice(_TOKENS), text)
    data = text.encode("utf-8", "surrogatepass")
    if kind >= 0.6:
        others = [json.dumps(other).encode() for other in documents]
        data = _respelled(source, data) if kind < 0.75 else mutated(source, [data, data, *others])
    if source.random() < 0.03:
        return _compressed(source, data), {"Content-Encoding": "gzip"}
    return data[: 4 * MAX_BYTES], {}


def _restructured(source: Random, document: Any, documents: Sequence[Any]) -> Any:
    """Changes one value of a document, which is selected by a random walk from the root."""
    path: list[Any] = []
    node = document
    while isinstance(node, (dict, list)) and node and (not path or source.random() < 0.7):
        key = source.choice(list(node)) if isinstance(node, dict) else source.randrange(len(node))
        path.append(key)
        node = node[key]
    if not path:
        return source.choice(_VALUES)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    _change(source, parent, path[-1], node, documents)
    return document


def _change(source: Random, parent: Any, key: Any, node: Any, documents: Sequence[Any]) -> None:
    how = source.randrange(9)
    if how == 0:
        del parent[key]
    elif how == 1:
        parent[key] = _MARK
    elif how == 2:
        parent[key] = [node] * (source.choice((1, 2, 3, 200)) if len(json.dumps(node)) < _SMALL_BYTES else 1)
    elif how == 3:
        for _ in range(source.choice((1, 2, 5, 40, 200))):
            node = [node]
        parent[key] = node
    elif how == 4 and isinstance(parent, dict):
        parent[source.choice((*_KEYS, f"{key}x", f"{key}__values", f"{key}__row_splits"))] = parent.pop(key)
    elif how == 5 and isinstance(node, (int, float)):
        parent[key] = node + source.choice((-1, 1, 0.5, 1000, 2**40))
    elif how == 6 and isinstance(node, list) and node:
        source.choice((node.reverse, node.clear, lambda: node.append(source.choice(_VALUES)), lambda: node.pop()))()
    elif how == 7:
        parent[key] = copy.deepcopy(source.choice(documents))
    else:
        parent[key] = copy.deepcopy(source.choice(_VALUES))


def _respelled(source: Random, data: bytes) -> bytes:
    """Mutates the spelling of a JSON document: encoding, repeated keys, nesting, quotes; the result may be invalid."""
    how = source.randrange(9)
    depth = source.choice((10, 200, 2000, _MAX_DEPTH))
    if how == 0:
        return b"\xef\xbb\xbf" + data
    if how == 1:
        return data.decode().encode(source.choice(("utf-16", "utf-32", "utf-16-le")))
    if how == 2:
        # Repeats all members of the JSON object, so that each key occurs twice.
        return data[: data.rfind(b"}")] + b"," + data[1:] if data.startswith(b"{") else data
    if how == 3:
        opening, closing = source.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return opening * depth + (closing * depth if source.random() < 0.5 else b"")
    if how == 4:
        return data.replace(b"[", b"[" * min(depth, 2000), 1)
    if how == 5:
        return data + source.choice((b" ", b"\n\n", b"{}", b",", b"\x00", b"]"))
    if how == 6:
        return data.replace(b'"', b"'")
    if how == 7:
        return data.replace(b":", source.choice((b" :\r\n\t", b"::", b"=")))
    return data.replace(b'": ', b'": \xff', 1) if source.random() < 0.5 else data.replace(b'"', b'"\xc3(', 1)


def _compressed(source: Random, data: bytes) -> bytes:
    if source.random() < 0.1:
        data = b" " * (1 << 20) + data
    packed = gzip.compress(data, 1, mtime=0)
    return packed if source.random() < 0.5 else mutated(source, [packed])
