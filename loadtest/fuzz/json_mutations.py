"""Mutates JSON documents: their structure, their text, or their bytes."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from loadtest.fuzz.byte_mutations import MAX_BYTES, mutated

# Tokens, most of them invalid in JSON, that are written without quotes in place of a value.
_TOKENS = (
    "NaN",
    "-Infinity",
    "Infinity",
    "1e400",
    "-0",
    "-0.0",
    "1e-400",
    "01",
    "1.",
    "+1",
    "0x10",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1" * 400,
    "1." + "7" * 2000,
    '"\\ud800"',
    '"\\u0000"',
    '"\\x"',
    '"\t"',
    "tru",
    "'a'",
    "{}{}",
    "/*x*/1",
    "",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    0.5,
    1e308,
    "",
    "a",
    "0",
    "\u00e9\u4e2d\U0001f600",
    "\x00",
    "x" * 5000,
    [],
    {},
    [[]],
    [{}],
    {"b64": "AAA="},
    {"b64": "***"},
    {"b64": 1},
    {"b64": "AAAA", "more": 1},
    [1, "a", None, [2]],
    [[1], [1, 2], [[3]]],
    list(range(300)),
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
