"""JSON text to Python objects and back, with TensorFlow Serving's rules where plain JSON has none.

NaN, Infinity and -Infinity travel as bare tokens both ways; a key that comes twice is refused, as which of the two was
meant is anyone's guess.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5), ParseJson and WriteDecimal.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from service.core.errors import MalformedPayload
from service.core.types import Array

_NAN_TOKENS = (b"NaN", b"Infinity")
_TYPE_NAMES = {dict: "Object", list: "Array", str: "String", bool: "Bool", type(None): "Null"}
_SHOWN_CHARS = 64


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the object that a body holds.

    Raises:
      MalformedPayload: empty, not JSON, nested too deeply, not an object, or with a key that comes twice.
    """
    if not body or body.isspace():
        raise MalformedPayload("JSON Parse error: The document is empty")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # orjson has no NaN; the parser that has is some ten times slower, so only such bodies meet it.
        if not any(token in body for token in _NAN_TOKENS):
            raise MalformedPayload(f"JSON Parse error: {error}") from error
        document = _parse_slowly(body)
    if type(document) is not dict:
        raise MalformedPayload(f"JSON Value: {describe(document)} Is not object")
    # orjson keeps the last of equal keys. Each key costs one colon, and colons elsewhere stand in strings only, so an
    # equal count proves that no key came twice at the price of one memchr pass.
    if body.count(b":") != _count_keys(document) + body.count(b'"b64"'):
        _parse_slowly(body)
    return document


def describe(value: Any) -> str:
    """Shows a JSON value and its type, cut short, for messages.

    >>> describe(1.5), describe("x"), describe({"a": [1]})
    ('1.5 Type: Number', '"x" Type: String', '{"a":[1]} Type: Object')
    """
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # Deeper than orjson writes, or an integer beyond 64 bits.
        text = "..."
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return f"{shown} Type: {_TYPE_NAMES.get(type(value), 'Number')}"


def dump(document: Any) -> bytes:
    """Writes dicts, lists and arrays; float32 in its shortest form, non-finite numbers as bare tokens.

    Arrays must be C-contiguous and numeric, and of rank 1 or more (a scalar travels as a numpy scalar).
    """
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes null for NaN and infinity, which nothing else in an answer gives, except perhaps a name.
    if b"null" in text:
        return b"".join(_pieces(document))
    return text


def _count_keys(document: dict[str, Any]) -> int:
    count = len(document)
    for value in document.values():
        if type(value) is dict:
            count += len(value)
        elif type(value) is list and set(map(type, value)) == {dict}:
            count += sum(map(len, value))
    return count


def _parse_slowly(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique)
    except RecursionError as error:
        raise MalformedPayload("JSON Parse error: nested too deeply") from error
    except ValueError as error:
        raise MalformedPayload(f"JSON Parse error: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise MalformedPayload(f'JSON object has the key "{twice}" twice')
    return result


def _pieces(value: Any) -> list[bytes]:
    pieces: list[bytes] = []
    if isinstance(value, dict):
        separator = b"{"
        for key, item in value.items():
            pieces += [separator, orjson.dumps(key), b":", *_pieces(item)]
            separator = b","
        return [*pieces, b"}"] if pieces else [b"{}"]
    if isinstance(value, list):
        separator = b"["
        for item in value:
            pieces += [separator, *_pieces(item)]
            separator = b","
        return [*pieces, b"]"] if pieces else [b"[]"]
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if not isinstance(value, (np.ndarray, np.floating)) or b"null" not in text:
        return [text]
    # The nulls of a number array are its non-finite elements, in the same order.
    return _with_tokens(text, np.asarray(value))


def _with_tokens(text: bytes, array: Array) -> list[bytes]:
    flat = array.reshape(-1)
    tokens = [_token(number) for number in flat[~np.isfinite(flat)].tolist()]
    parts = text.split(b"null")
    pieces = [parts[0]]
    for token, part in zip(tokens, parts[1:], strict=True):
        pieces += [token, part]
    return pieces


def _token(number: float) -> bytes:
    if number != number:
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"
