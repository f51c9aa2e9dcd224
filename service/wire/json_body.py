"""Parses and writes the JSON bodies of control requests: searches, views of tables, upserts.

Plain JSON has no NaN and no Infinity: a body with one is refused, and an answer has null in its place.

>>> decode_neighbors(b'{"ids": [7], "k": 2}').rows.ids.tolist()
[7]
>>> decode_upsert(b'{"ids": [7], "rows": [[0.5, 1]]}').rows.tolist()
[[0.5, 1.0]]
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

from service.control.table_view import Projection
from service.errors import MalformedPayload, PayloadTooLarge, did_you_mean
from service.types import Array, TableInfo
from service.versions.deltas import Upsert
from service.versions.neighbors import (
    DEFAULT_K,
    DEFAULT_METRIC,
    METRICS,
    Named,
    NeighborAnswer,
    NeighborQuery,
)

# Largest number of keys, of lists and objects, and of strings, of a JSON document: parsed, a key takes some 180 bytes,
# a list or object some 90, and a string some 60, however short the text is.
MAX_KEYS = 1 << 18
MAX_LISTS = 1 << 19
MAX_STRINGS = 1 << 22
_SHOWN_CHARS = 60
# First bytes of a body that is not JSON text -> what the body is and what to change; as native/src/plan/foreign.rs.
_FOREIGN: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (b"\x1f\x8b", " It is compressed by gzip: send it with the header Content-Encoding: gzip."),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{"), " It is UTF-16 text: encode it as UTF-8."),
)
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
    bound_tokens(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = next((hint for start, hint in _FOREIGN if body.startswith(start)), "")
        hint = hint or (" JSON has no NaN and no Infinity." if _NOT_FINITE.search(body) else "")
        raise MalformedPayload(f"The body is not JSON: {error}.{hint}") from error
    if type(document) is not dict:
        raise MalformedPayload(f"{what} is a JSON object, the body is {shown(document)}.")
    return document


def check_keys(what: str, document: Mapping[str, Any], keys: frozenset[str]) -> None:
    if not document.keys() <= keys:
        unknown = sorted(document.keys() - keys)
        near = did_you_mean(unknown[0], keys).replace("; did", " Did", 1)
        raise MalformedPayload(f"Unknown keys: {', '.join(unknown[:10])}. {what} has: {', '.join(sorted(keys))}.{near}")


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
    keys = (key.encode() if type(key) is str else _from_base64(name, at, key) for at, key in enumerate(value))
    return np.array([*keys], object)


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


def dump_plain(document: Any) -> bytes:
    """Writes dicts, lists, named tuples and C-contiguous arrays of numbers as JSON; null for NaN and infinity.

    In bytes, what is no UTF-8 is replaced.
    """
    return orjson.dumps(document, _plain, orjson.OPT_SERIALIZE_NUMPY)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value._asdict()


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


_QUERIES = frozenset({"ids", "keys", "vectors"})
_KEYS = _QUERIES | {"k", "metric", "feature", "filter", "include_self", "exact", "labels"}
_FILTER_KEYS = frozenset({"ids", "keys", "exclude_ids", "exclude_keys"})


def decode_neighbors(body: bytes) -> NeighborQuery:
    """Parses {"ids": [...] or "keys": [...] or "vectors": [[...]], "k": 10, "metric": "dot", "filter": {...}, ...}.

    "labels": a list is a query, too, by labels of rows; true only asks for the labels of the rows in the answer.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, not exactly one kind of query, or a value of the
        wrong type.
      PayloadTooLarge: the body has too many keys, lists or strings.
    """
    document = parse_body("A search", body, _KEYS)
    labels = document.get("labels", False)
    by_label = type(labels) is list
    if not all(type(one) is str for one in labels) if by_label else type(labels) is not bool:
        raise MalformedPayload(
            f'"labels" is {shown(labels)}, expected a list of labels, or true for the labels of the found rows.'
        )
    sent = sorted(_QUERIES & document.keys()) + ["labels"] * by_label
    if len(sent) != 1:
        got = f"; the request has {' and '.join(sent)}" if sent else ""
        raise MalformedPayload(f'Expected one of "ids", "keys", "vectors" and "labels"{got}.')
    k, metric = document.get("k", DEFAULT_K), document.get("metric", DEFAULT_METRIC)
    feature, include_self = document.get("feature", ""), document.get("include_self", False)
    exact = document.get("exact", False)
    if type(k) is not int:
        raise MalformedPayload(f'"k" is {shown(k)}, expected a number of neighbours.')
    if metric not in METRICS:
        raise MalformedPayload(f'"metric" is {shown(metric)}, expected one of: {", ".join(METRICS)}.')
    if type(feature) is not str or type(include_self) is not bool or type(exact) is not bool:
        raise MalformedPayload('"feature" is a string; "include_self" and "exact" are true or false.')
    chosen = document.get("filter", {})
    if type(chosen) is not dict:
        raise MalformedPayload(f'"filter" is {shown(chosen)}, expected an object.')
    check_keys("A filter", chosen, _FILTER_KEYS)
    return NeighborQuery(
        rows=_named(document, ""),
        vectors=row_list("vectors", document["vectors"]) if "vectors" in document else None,
        k=k,
        metric=metric,
        feature=feature,
        allowed=_named(chosen, ""),
        denied=_named(chosen, "exclude_"),
        include_self=include_self,
        exact=exact,
        labels=labels if by_label else None,
        wants_labels=bool(labels),
    )


def encode_neighbors(answer: NeighborAnswer) -> bytes:
    """Encodes {"ids": [[...]], "keys": [[...]], "labels": [[...]], "scores": [[...]]}: a list for each query.

    The nearest row is first. "recall" is there too if an index named the rows that were compared. An infinite score is
    null.
    """
    counts = (answer.ids >= 0).sum(axis=1).tolist()
    document: dict[str, Any] = {"ids": [row[:count].tolist() for row, count in zip(answer.ids, counts, strict=True)]}
    if answer.keys is not None:
        rows = zip(answer.keys.tolist(), counts, strict=True)
        document["keys"] = [[_key(key) for key in row[:count]] for row, count in rows]
    if answer.labels is not None:
        document["labels"] = [row[:count] for row, count in zip(answer.labels, counts, strict=True)]
    document["scores"] = [row[:count] for row, count in zip(answer.scores, counts, strict=True)]
    if answer.recall is not None:
        document["recall"] = round(answer.recall, 4)
    return dump_plain(document)


def _key(key: Any) -> Any:
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(key).decode()}


def _named(values: Mapping[str, Any], prefix: str) -> Named:
    ids, keys = prefix + "ids", prefix + "keys"
    return Named(
        id_list(ids, values[ids]) if ids in values else None,
        key_list(keys, values[keys]) if keys in values else None,
    )


# Number of decimals of the coordinates on a table's 2-D map, which lie between -1 and 1.
_PLACE_DECIMALS = 5


def encode_tables(tables: list[TableInfo]) -> bytes:
    return dump_plain({"tables": tables})


def encode_projection(projection: Projection, version: int, total: int) -> bytes:
    """Encodes a 2-D map of a table's rows; the coordinates are scaled so that the largest one is 1 or -1."""
    largest = float(np.abs(projection.places).max(initial=0.0)) or 1.0
    places = np.round(projection.places / largest, _PLACE_DECIMALS).astype(np.float32)
    return dump_plain(
        {
            "version": version,
            "total": total,
            "explained": list(projection.explained),
            "ids": projection.ids,
            "x": np.ascontiguousarray(places[:, 0]),
            "y": np.ascontiguousarray(places[:, 1]),
            "norms": projection.norms,
        }
    )


def encode_drift(cosines: Array, version: int, older: int, *, is_aligned: bool) -> bytes:
    """Encodes {"version", "from", "is_aligned", "values"}; values: per row on a 2-D map, 1 - cosine to its old row."""
    values = np.round(1 - cosines, _PLACE_DECIMALS).astype(np.float32)
    return dump_plain({"version": version, "from": older, "is_aligned": is_aligned, "values": values})


_UPSERT_KEYS = frozenset({"ids", "keys", "feature", "rows", "force"})


def decode_upsert(body: bytes) -> Upsert:
    """Parses an upsert's body {"ids": [...] or "keys": [...], "rows": [[...], ...], "feature": "...", "force": false}.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, both ids and keys or neither, no rows, or a value
        of the wrong type.
      PayloadTooLarge: the body has too many keys, lists or strings.
    """
    document = parse_body("An upsert", body, _UPSERT_KEYS)
    if ("ids" in document) == ("keys" in document):
        raise MalformedPayload('Expected one of "ids" and "keys".')
    feature, is_forced = document.get("feature", ""), document.get("force", False)
    if type(feature) is not str or type(is_forced) is not bool:
        raise MalformedPayload('"feature" is a string and "force" is true or false.')
    rows = row_list("rows", document.get("rows"))
    name, read = ("ids", id_list) if "ids" in document else ("keys", key_list)
    named = read(name, document[name])
    if rows.size == 0 or named.size == 0:
        raise MalformedPayload(f'"{name}" or "rows" is empty: send at least one row and its {name[:-1]}.')
    if name == "ids":
        return Upsert(rows, ids=named, feature=feature, is_forced=is_forced)
    return Upsert(rows, keys=named, feature=feature, is_forced=is_forced)
