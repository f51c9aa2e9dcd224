"""Parses the bodies of lookups and of requests for rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.errors import InputMismatch, MalformedPayload, ServiceError
from service.wire.json_lookup import (
    decode_features,
    decode_lookup,
    decode_rows,
    encode_lookup,
    encode_rows,
)
from tests.unit.wire.specs import LOOKUP, Keys, ragged, spec, vector


def decoded(document: Any) -> dict[str, Any]:
    """Decodes a lookup's document to lists by input name."""
    arrays = decode_features(decode_lookup(json.dumps(document).encode()), LOOKUP)
    return {name: array.tolist() for name, array in arrays.items()}


def test_features_of_both_kinds_and_weights() -> None:
    document = {"features": {"user": [1, 2], "tags": [["red", "blue"], []]}, "weights": {"tags": [[0.5, 1], []]}}
    assert decoded(document) == {
        "user": [1, 2],
        "tags__values": [b"red", b"blue"],
        "tags__row_splits": [0, 2, 2],
        "tags__weights": [0.5, 1.0],
    }


def test_string_keys_and_sequences() -> None:
    signature = spec(vector("word", "string", vocabulary=Keys()), *ragged("path", "string", has_vocabulary=True)[:2])
    body = {"features": {"word": ["a", {"b64": "/w=="}], "path": [["é"], [], ["x", "y"]]}}
    arrays = decode_features(decode_lookup(json.dumps(body).encode()), signature)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "word": [b"a", b"\xff"],
        "path__values": ["é".encode(), b"x", b"y"],
        "path__row_splits": [0, 1, 1, 3],
    }
    assert arrays["path__values"].dtype == object
    with pytest.raises(InputMismatch, match='feature "path" takes no weights in signature "s"'):
        body_with_weights = body | {"weights": {"path": [[1], [], [1, 1]]}}
        decode_features(decode_lookup(json.dumps(body_with_weights).encode()), signature)
    assert encode_lookup({"path": np.array([[[1, 2], [0, 0]]], np.float32)}) == (
        b'{"embeddings":{"path":[[[1.0,2.0],[0.0,0.0]]]}}'
    )


def test_the_signature_is_lookup_unless_it_is_named() -> None:
    assert decode_lookup(b'{"features": {}}').signature_name == "lookup"
    assert decode_lookup(b'{"features": {}, "signature_name": "other"}').signature_name == "other"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"weights": {}}, '"features" is missing'),
        ({"features": [1]}, '"features" is not an object'),
        ({"features": {}, "weights": [1]}, '"weights" is not an object'),
        ({"features": {}, "ids": [1], "zzz": 1}, "Unknown keys: ids, zzz. A lookup has: features, signature_name"),
        ({"features": {"user": [1]}, "weights": {"tags": [[1]]}}, 'feature "tags": weights were sent without ids'),
        ({"features": {"user": [1]}, "weights": {"user": [1]}}, 'feature "user" has one id per row and takes no weig'),
        ({"features": {"tags": [[1, 2]]}, "weights": {"tags": [[1]]}}, 'feature "tags": row 0 has 2 ids but 1 weights'),
        ({"features": {"tags": [[1]]}, "weights": {"tags": [["x"]]}}, "tags__weights.*expected type: float32"),
        ({"features": {"film": [1]}}, 'has no feature "film". Features it takes: films, tags, user'),
        ({"features": {"tags__values": [1]}}, 'has no feature "tags__values"'),
        ({"features": {"user": [1.5]}}, 'input "user": JSON Value: 1.5'),
    ],
)
def test_errors_name_the_feature(document: Any, problem: str) -> None:
    with pytest.raises((MalformedPayload, InputMismatch), match=problem):
        decoded(document)


def test_the_answer_holds_what_it_is_given() -> None:
    outputs = {"user": np.array([[1, 2]], np.float32), "tags": np.zeros((0, 3), np.float32)}
    assert encode_lookup(outputs) == b'{"embeddings":{"user":[[1.0,2.0]],"tags":[]}}'


def test_rows_go_both_ways() -> None:
    ids = decode_rows(b'{"ids": [3, 1]}')
    assert ids.dtype == np.int64 and ids.tolist() == [3, 1]
    assert encode_rows(np.arange(4, dtype=np.float32).reshape(2, 2).T) == b'{"rows":[[0.0,2.0],[1.0,3.0]]}'


@pytest.mark.parametrize("body", [b"{}", b'{"ids": [[1]]}', b'{"ids": 1}', b'{"ids": ["1"]}', b'{"ids": [1], "x": 2}'])
def test_rows_take_one_flat_list(body: bytes) -> None:
    with pytest.raises(ServiceError, match="ids"):
        decode_rows(body)
