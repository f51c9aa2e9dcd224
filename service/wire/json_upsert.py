"""Decodes the JSON body of an upsert, and encodes its answer.

>>> decode_upsert(b'{"ids": [7], "rows": [[0.5, 1]]}').rows.tolist()
[[0.5, 1.0]]
"""

from __future__ import annotations

import orjson

from service.engine.deltas import Upsert, UpsertReceipt
from service.errors import MalformedPayload
from service.wire.json_body import id_list, key_list, parse_body, row_list

_KEYS = frozenset({"ids", "keys", "feature", "rows", "force"})


def decode_upsert(body: bytes) -> Upsert:
    """Parses an upsert's body {"ids": [...] or "keys": [...], "rows": [[...], ...], "feature": "...", "force": false}.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, both ids and keys or neither, no rows, or a value
        of the wrong type.
      PayloadTooLarge: the body has too many keys, lists or strings.
    """
    document = parse_body("An upsert", body, _KEYS)
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


def encode_receipt(receipt: UpsertReceipt) -> bytes:
    """Encodes the answer to an upsert: number of rows, sequence number, and whether lookups return the rows already."""
    return orjson.dumps(receipt._asdict())
