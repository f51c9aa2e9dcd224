"""Parses and writes JSON documents by TensorFlow Serving's rules.

NaN, Infinity and -Infinity are bare tokens in both directions. A key that comes twice in an object is refused.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5), ParseJson and WriteDecimal.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import orjson

from service.errors import MalformedPayload
from service.types import Array
from service.wire.json_body import bound_tokens
from service.wire.json_text import json_type, parse_fault, shown

# Pattern that finds "Inf", the short form of Infinity that rapidjson accepts. It matches strings too, so that "Inf"
# inside a string is skipped.
_INT_CHARS = 20
_INF = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b')


# Number of an array's elements that are written at once: some 0.7 ms of work.
_NUMBERS_AT_ONCE = 1 << 14


def parse_object(body: bytes, *, strict: bool = False) -> dict[str, Any]:
    """Parses a request's body, which must be a JSON object.

    Args:
      strict: refuse bare NaN and Infinity, which plain JSON does not have.

    Raises:
      MalformedPayload: the body is empty, not JSON, nested too deeply or not an object, or has a key twice.
      PayloadTooLarge: the document has too many keys, lists or strings, see bound_tokens.
    """
    if not body:
        raise MalformedPayload("JSON Parse error: The document is empty")
    bound_tokens(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        # The fast parser orjson refuses NaN, and text behind the document. A body that orjson refuses goes to a parser
        # that is ten times slower; it accepts text behind the document, and NaN unless `strict` is set.
        document = _parse_slowly(body, strict=strict)
    if type(document) is not dict:
        raise MalformedPayload(f"JSON Value: {shown(document)} Is not object")
    # Repeated keys of a JSON object are looked for in the text, because orjson silently keeps only the last of them.
    # Each key costs one colon, and other colons are in strings only, so that equal counts prove that no key came twice,
    # at the price of one memchr pass.
    if body.count(b":") != _count_keys(document) + body.count(b'"b64"'):
        _parse_slowly(body)
    return document


def describe(value: Any) -> str:
    """Returns a text with a JSON value, shortened, and its type, for error texts.

    >>> describe(1.5), describe("x"), describe(True)
    ('1.5 Type: Number', '"x" Type: String', 'true Type: True')
    """
    return f"{shown(value)} Type: {json_type(value)}"


def dump(document: Any, *, strict: bool = False) -> bytes:
    """Writes dicts, lists and arrays as JSON; float32 with its fewest digits, NaN and infinity as bare words.

    Args:
      strict: writes null for non-finite numbers, so that any JSON parser reads the answer.

    Arrays must be C-contiguous and numeric, and of rank 1 or more (a scalar travels as a numpy scalar).
    """
    if _has_large_array(document):
        return b"".join(_pieces(document, strict=strict))
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    # "null" in orjson's output means that a number was NaN or infinite, because an answer has no other null, except
    # perhaps in a name.
    if b"null" in text and not strict:
        return b"".join(_pieces(document))
    return text


def _has_large_array(document: Any) -> bool:
    if isinstance(document, dict):
        return any(map(_has_large_array, document.values()))
    return isinstance(document, np.ndarray) and document.ndim > 1 and document.size > _NUMBERS_AT_ONCE


def _count_keys(document: dict[str, Any]) -> int:
    count = len(document)
    for value in document.values():
        if type(value) is dict:
            count += len(value)
        elif type(value) is list and set(map(type, value)) == {dict}:
            count += sum(map(len, value))
    return count


def _parse_slowly(body: bytes, *, strict: bool = False) -> Any:
    if b"\\u" in body and (fault := parse_fault(body)):
        # Lone surrogates (half characters) are checked here, because Python's JSON parser accepts them.
        raise MalformedPayload(f"JSON Parse error: {fault}")
    decoder = json.JSONDecoder(
        object_pairs_hook=_unique,
        parse_float=_finite,
        parse_int=_whole,
        parse_constant=_refuse_constant if strict else None,
    )
    try:
        text = body.decode("utf-8-sig").lstrip(" \t\r\n")
        if "Inf" in text:
            text = _INF.sub(lambda found: "Infinity" if found[0] == "Inf" else found[0], text)
        # raw_decode() ignores text behind the document, as TensorFlow Serving does.
        return decoder.raw_decode(text)[0]
    except RecursionError as error:
        raise MalformedPayload(f"JSON Parse error: {parse_fault(body) or 'nested too deeply'}") from error
    except ValueError as error:
        raise MalformedPayload(f"JSON Parse error: {parse_fault(body) or error}") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number too big to be stored in double.")
    return number


def _whole(text: str) -> int | float:
    number = int(text) if len(text) <= _INT_CHARS else None
    # Integers beyond 64 bits in a JSON body become floats, as in rapidjson.
    return number if number is not None and -(2**63) <= number < 2**64 else _finite(text)


def _refuse_constant(token: str) -> float:
    raise ValueError(f"{token} is no JSON, and this server was told to be strict")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise MalformedPayload(f'JSON object has the key "{twice}" twice')
    return result


def _pieces(value: Any, *, strict: bool = False) -> list[bytes]:
    pieces: list[bytes] = []
    if isinstance(value, dict):
        separator = b"{"
        for key, item in value.items():
            pieces += [separator, orjson.dumps(key), b":", *_pieces(item, strict=strict)]
            separator = b","
        return [*pieces, b"}"] if pieces else [b"{}"]
    if isinstance(value, list):
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        if strict or b"null" not in text:
            return [text]
        separator = b"["
        for item in value:
            pieces += [separator, *_pieces(item, strict=strict)]
            separator = b","
        return [*pieces, b"]"] if pieces else [b"[]"]
    text = _text(value)
    if strict or not isinstance(value, (np.ndarray, np.floating)) or b"null" not in text:
        return [text]
    # Each null in orjson's text of a number array is replaced: it stands for the next NaN or infinity of the array.
    return _with_tokens(text, np.asarray(value))


def _text(value: Any) -> bytes:
    """Writes an array or a scalar; a large array in parts, because orjson holds the interpreter lock in each call.

    >>> _text(np.arange(6).reshape(3, 2))
    b'[[0,1],[2,3],[4,5]]'
    """
    if not _has_large_array(value):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    step = max(_NUMBERS_AT_ONCE * len(value) // value.size, 1)
    parts = [
        orjson.dumps(value[at : at + step], option=orjson.OPT_SERIALIZE_NUMPY) for at in range(0, len(value), step)
    ]
    return b"[" + b",".join(part[1:-1] for part in parts) + b"]"


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
