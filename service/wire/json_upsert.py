"""Decodes the JSON body of an upsert, and encodes its answer.

>>> decode_upsert(b'{"ids": [7], "rows": [[0.5, 1]]}').rows.tolist()
[[0.5, 1.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from service.engine.deltas import Upsert, UpsertReceipt
from service.errors import MalformedPayload
from service.types import Array, TensorSpec
from service.wire.json_arrays import dense_array
from service.wire.json_document import parse_object

_KEYS = frozenset({"ids", "keys", "feature", "rows", "force"})
_IDS = TensorSpec("ids", "int64", (None,))
_ROWS = TensorSpec("rows", "float32", (None, None))


def decode_upsert(body: bytes) -> Upsert:
    """Parses an upsert's body {"ids": [...] or "keys": [...], "rows": [[...], ...], "feature": "...", "force": false}.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, both ids and keys or neither, or a value of the
        wrong type.
    """
    document = parse_object(body)
    if not document.keys() <= _KEYS:
        unknown = ", ".join(sorted(document.keys() - _KEYS))
        raise MalformedPayload(f"Unknown keys: {unknown}. An upsert has: {', '.join(sorted(_KEYS))}.")
    if ("ids" in document) == ("keys" in document):
        raise MalformedPayload('Expected one of "ids" and "keys".')
    feature, is_forced = document.get("feature", ""), document.get("force", False)
    if type(feature) is not str or type(is_forced) is not bool:
        raise MalformedPayload('"feature" is a string and "force" is true or false.')
    rows = _array("rows", document.get("rows"), _ROWS, 2)
    if "ids" in document:
        return Upsert(rows, ids=_array("ids", document["ids"], _IDS, 1), feature=feature, is_forced=is_forced)
    keys = document["keys"]
    return Upsert(rows, keys=_array("keys", keys, keys_spec("keys", keys), 1), feature=feature, is_forced=is_forced)


def keys_spec(name: str, keys: Any) -> TensorSpec:
    """Returns the TensorSpec of a JSON list of keys: strings if the first key is a string or {"b64": "..."}, else
    integers.
    """
    is_text = type(keys) is list and bool(keys) and type(keys[0]) in (str, dict)
    return TensorSpec(name, "string" if is_text else "int64", (None,))


def encode_receipt(receipt: UpsertReceipt) -> bytes:
    """Encodes the answer to an upsert: number of rows, sequence number, and whether lookups return the rows already."""
    return orjson.dumps(receipt._asdict())


def _array(name: str, value: Any, spec: TensorSpec, rank: int) -> Array:
    array = dense_array(name, value, spec)
    if array.ndim != rank or array.size == 0:
        what = "a list of lists of numbers, one for each id" if rank == 2 else "a flat list"
        raise MalformedPayload(f'"{name}" is not {what}, or empty.')
    return np.ascontiguousarray(array)
