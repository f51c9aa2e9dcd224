"""Decodes and encodes the JSON bodies of lookups by feature, and of rows of tables by id.

>>> decode_lookup(b'{"features": {"user_id": [1, 2]}}').signature_name
'lookup'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.errors import InputMismatch, MalformedPayload
from service.types import (
    Array,
    SignatureSpec,
    TensorSpec,
)
from service.wire.json_arrays import add_ragged, dense_array, feature_names, ragged_owner
from service.wire.json_document import dump, parse_object
from service.wire.json_tensor import plain_array, read_signature_name

DEFAULT_LOOKUP_SIGNATURE = "lookup"

_LOOKUP_KEYS = frozenset({"features", "weights", "signature_name"})
_IDS = TensorSpec("ids", "int64", (None,))


@dataclass(frozen=True, slots=True)
class LookupBody:
    """A parsed lookup body, whose ids are JSON lists and not arrays yet.

    features: feature name -> ids, one per row or one list per row.
    weights: name of a ragged feature -> one list of factors per row.
    """

    signature_name: str
    features: Mapping[str, Any]
    weights: Mapping[str, Any]


def decode_lookup(body: bytes, *, strict: bool = False) -> LookupBody:
    """Parses a lookup body {"features": {...}, "weights": {...}, "signature_name": "..."}; only features is required.

    Args:
      strict: refuses bare NaN and Infinity.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, a value of the wrong type, or weights for a feature
        that was not sent.
    """
    document = parse_object(body, strict=strict)
    if not document.keys() <= _LOOKUP_KEYS:
        unknown = ", ".join(sorted(document.keys() - _LOOKUP_KEYS))
        raise MalformedPayload(f"Unknown keys: {unknown}. A lookup has: {', '.join(sorted(_LOOKUP_KEYS))}.")
    features = _object(document, "features", required=True)
    weights = _object(document, "weights")
    for name in weights:
        if name not in features:
            raise MalformedPayload(f'feature "{name}": weights were sent without ids.')
    return LookupBody(read_signature_name(document, DEFAULT_LOOKUP_SIGNATURE), features, weights)


def decode_features(body: LookupBody, spec: SignatureSpec) -> dict[str, Array]:
    """Converts the features of a parsed lookup body to arrays; returns input name -> array.

    Raises:
      MalformedPayload: a value of the wrong type, or weights whose rows do not fit the ids'.
      InputMismatch: a feature that the signature lacks, or weights for one that takes none.
    """
    arrays: dict[str, Array] = {}
    for name, value in body.features.items():
        weights = body.weights.get(name)
        names = spec.ragged.get(name)
        if names is not None:
            add_ragged(arrays, names, value, spec, weights)
            continue
        tensor = spec.inputs.get(name)
        if tensor is None or ragged_owner(name, spec) is not None:
            features = ", ".join(feature_names(spec))
            raise InputMismatch(f'signature "{spec.name}" has no feature "{name}". Features it takes: {features}.')
        if weights is not None:
            raise InputMismatch(f'feature "{name}" has one id per row and takes no weights.')
        arrays[name] = dense_array(name, value, tensor)
    return arrays


def encode_lookup(outputs: Mapping[str, Array], *, strict: bool = False) -> bytes:
    """Encodes a lookup's answer {"embeddings": {feature: [[...], ...]}}.

    Args:
      strict: writes null for NaN and infinity, which plain JSON lacks.
    """
    plain = {name: plain_array(name, array) for name, array in outputs.items()}
    return dump({"embeddings": plain}, strict=strict)


def decode_rows(body: bytes) -> Array:
    """Parses the body {"ids": [...]} of a request for rows of a table; returns [N] int64 ids.

    Raises MalformedPayload.
    """
    document = parse_object(body)
    if document.keys() != {"ids"}:
        raise MalformedPayload('Expected exactly one key, "ids", with a list of row ids.')
    ids = dense_array("ids", document["ids"], _IDS)
    if ids.ndim != 1:
        raise MalformedPayload(f'input "ids": expected a flat list of row ids, got rank {ids.ndim}.')
    return ids


def encode_rows(rows: Array, *, strict: bool = False) -> bytes:
    """Encodes the answer {"rows": [[...], ...]} with [N, D] rows of a table.

    Args:
      strict: writes null for NaN and infinity, which plain JSON lacks.
    """
    return dump({"rows": np.ascontiguousarray(rows)}, strict=strict)


def _object(document: Mapping[str, Any], key: str, *, required: bool = False) -> Mapping[str, Any]:
    value = document.get(key, None if required else {})
    if type(value) is not dict:
        raise MalformedPayload(f'"{key}" is {"missing" if key not in document else "not an object"}.')
    return value
