"""Parses and writes the plain JSON bodies of searches and upserts, whose lists become arrays.

Plain JSON has no NaN and no Infinity: a body with one is refused, and an answer has null in its place.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import orjson

from service.errors import MalformedPayload, PayloadTooLarge
from service.types import Array

# Largest number of keys, of lists and objects, and of strings, of a JSON document: parsed, a key takes some 180 bytes,
# a list or object some 90, and a string some 60, however short the text is.
MAX_KEYS = 1 << 18
MAX_LISTS = 1 << 19
MAX_STRINGS = 1 << 22
_SHOWN_CHARS = 60
_NOT_FINITE = re.compile(rb"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)


def bound_tokens(body: bytes) -> None:
    """Refuses a JSON document that would take far more memory than its text.

    Raises:
      PayloadTooLarge: more than MAX_KEYS colons, MAX_LISTS lists and objects, or MAX_STRINGS strings.
    """
    # Keys, lists, objects and strings are estimated by counting colons, brackets and quotes, even those inside strings:
    # this takes only a few percent of the parser's time.
    if len(body) <= MAX_KEYS:
        return
    if body.count(b":") > MAX_KEYS:
        raise PayloadTooLarge(f"The JSON document has more than {MAX_KEYS} keys; send columns, or fewer rows.")
    if body.count(b"[") + body.count(b"{") > MAX_LISTS:
        raise PayloadTooLarge(f"The JSON document has more than {MAX_LISTS} lists and objects; send fewer rows.")
    if body.count(b'"') > 2 * MAX_STRINGS:
        raise PayloadTooLarge(f"The JSON document has more than {MAX_STRINGS} strings; send fewer rows.")


def parse_body(what: str, body: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """Parses a body, which must be a JSON object with no other keys than `keys`.

    Args:
      what: what the body is, such as "A search", for error texts.

    Raises:
      MalformedPayload: the body is not plain JSON, not an object, nested too deeply, or has an unknown key, or a key
        twice.
      PayloadTooLarge: the document has too many keys, lists or strings, see bound_tokens.
    """
    document = parse_object(what, body)
    check_keys(what, document, keys)
    # orjson silently keeps the last of equal keys. Each key costs one colon, and other colons are in strings only, so
    # equal counts prove that no key came twice.
    if body.count(b":") != len(document) + sum(len(value) for value in document.values() if type(value) is dict):
        _refuse_equal_keys(body)
    return document


def parse_object(what: str, body: bytes) -> dict[str, Any]:
    """Parses a body, which must be a JSON object, with any keys; arguments and errors as parse_body."""
    bound_tokens(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = " JSON has no NaN and no Infinity." if _NOT_FINITE.search(body) else ""
        raise MalformedPayload(f"The body is not JSON: {error}.{hint}") from error
    if type(document) is not dict:
        raise MalformedPayload(f"{what} is a JSON object, the body is {shown(document)}.")
    return document


def check_keys(what: str, document: Mapping[str, Any], keys: frozenset[str]) -> None:
    """Raises MalformedPayload if a JSON object has a key that is not one of `keys`."""
    if not document.keys() <= keys:
        unknown = ", ".join(sorted(document.keys() - keys)[:10])
        raise MalformedPayload(f"Unknown keys: {unknown}. {what} has: {', '.join(sorted(keys))}.")


def shown(value: Any) -> str:
    """Returns a JSON value as text for an error message, cut after 60 characters.

    >>> shown(True), shown("x"), shown([1] * 100)
    ('true', '"x"', '[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1...')
    """
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def id_list(name: str, value: Any) -> Array:
    """Converts a flat JSON list of integers to [N] int64; raises MalformedPayload."""
    _check_elements(f'"{name}"', _flat(name, value), {int}, "an integer")
    try:
        return np.array(value, np.int64)
    except OverflowError as error:
        at = next(i for i, number in enumerate(value) if not -(2**63) <= number < 2**63)
        raise MalformedPayload(f'"{name}"[{at}] is {value[at]}, which does not fit int64.') from error


def key_list(name: str, value: Any) -> Array:
    """Converts a flat JSON list of keys to [N] object (bytes) or int64.

    Keys of a vocabulary of strings are strings or {"b64": "..."}, those of a vocabulary of integers are integers.

    Raises:
      MalformedPayload: no such list.
    """
    if not _flat(name, value) or type(value[0]) is int:
        return id_list(name, value)
    _check_elements(f'"{name}"', value, {str, dict}, 'a string or {"b64": "..."}, or an integer as all keys')
    keys = np.empty(len(value), object)
    keys[:] = [key.encode() if type(key) is str else _from_base64(name, at, key) for at, key in enumerate(value)]
    return keys


def row_list(name: str, value: Any) -> Array:
    """Converts a JSON list of equally long lists of numbers to [N, D] float32; too large numbers become infinite.

    Raises:
      MalformedPayload: no such list.
    """
    if type(value) is not list or not set(map(type, value)) <= {list}:
        raise MalformedPayload(f'"{name}" is not a list of lists of numbers.')
    for at, row in enumerate(value):
        if len(row) != len(value[0]):
            raise MalformedPayload(f'"{name}"[{at}] has {len(row)} numbers, "{name}"[0] has {len(value[0])}.')
    if not set(map(type, chain.from_iterable(value))) <= {int, float}:
        for at, row in enumerate(value):
            _check_elements(f'"{name}"[{at}]', row, {int, float}, "a number")
    with np.errstate(over="ignore"):
        return np.array(value, np.float64).astype(np.float32).reshape(len(value), -1 if value else 0)


def text_or_base64(item: bytes | str, *, as_bytes: bool = False) -> Any:
    """Returns a JSON value for a string: text, or {"b64": ...} if as_bytes is True or the bytes are not UTF-8."""
    data = item.encode() if isinstance(item, str) else item
    if not as_bytes:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(data).decode()}


def dump_plain(document: Any) -> bytes:
    """Writes dicts, lists and C-contiguous arrays of numbers as JSON; null for NaN and infinity."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _refuse_equal_keys(body: bytes) -> None:
    try:
        json.loads(body, object_pairs_hook=_unique)
    except RecursionError as error:
        raise MalformedPayload("The body's lists and objects are nested too deeply.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise MalformedPayload(f"The body has the key {shown(key)} twice in one object.")
        result[key] = value
    return result


def _flat(name: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise MalformedPayload(f'"{name}" is {shown(value)}, expected a flat list.')
    return value


def _check_elements(where: str, values: list[Any], types: set[type], expected: str) -> None:
    if not set(map(type, values)) <= types:
        at = next(i for i, value in enumerate(values) if type(value) not in types)
        raise MalformedPayload(f"{where}[{at}] is {shown(values[at])}, expected {expected}.")


def _from_base64(name: str, at: int, value: dict[str, Any]) -> bytes:
    try:
        if value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
    except (TypeError, ValueError, binascii.Error):
        pass
    raise MalformedPayload(f'"{name}"[{at}] is {shown(value)}, expected {{"b64": "..."}} with base64 text.')
