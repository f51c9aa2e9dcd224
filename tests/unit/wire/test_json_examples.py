"""REST bodies of classify and regress; what is wrong with one is in tests/conformance/cases/contract_rest.json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.engine.inference import Classification, Regression
from service.errors import MalformedPayload
from service.wire.json_examples import decode_examples_body, encode_result


def features(body: Any) -> list[dict[str, list[Any]]]:
    """Returns the features of each example of a body."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = []
    for serialized in decode_examples_body(text).examples:
        example = message_class("tensorflow.Example").FromString(serialized)
        named = {}
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            named[name] = list(getattr(feature, kind).value) if kind else []
        result.append(named)
    return result


def test_each_kind_of_value() -> None:
    example = {"i": 1, "b": [True, False], "f": [1.5, 2.0], "t": "é", "r": {"b64": "AP8="}, "none": []}
    (read,) = features({"examples": [example]})
    assert read == {"i": [1], "b": [1, 0], "f": [1.5, 2.0], "t": ["é".encode()], "r": [b"\x00\xff"], "none": []}


def test_numbers_that_are_not_finite_or_too_large() -> None:
    (read,) = features(b'{"examples": [{"x": [Infinity, -Infinity, 1e39, NaN]}]}')
    assert read["x"][:3] == [float("inf"), float("-inf"), float("inf")]
    assert np.isnan(read["x"][3])
    assert features(b'{"examples": [{"x": 36893488147419103232}]}') == [{"x": [2.0**65]}]


def test_a_context_is_shared() -> None:
    body = {"context": {"c": 1, "x": 2}, "examples": [{"x": 3}, {}]}
    assert features(body) == [{"c": [1], "x": [3]}, {"c": [1], "x": [2]}]


def test_the_signature() -> None:
    assert decode_examples_body(b'{"examples": [{}]}').signature_name == ""
    assert decode_examples_body(b'{"examples": [{}], "signature_name": "s"}').signature_name == "s"


def test_strict_bodies_and_names_that_are_no_text() -> None:
    with pytest.raises(MalformedPayload, match="NaN is no JSON"):
        decode_examples_body(b'{"examples": [{"x": NaN}]}', strict=True)
    with pytest.raises(MalformedPayload):
        decode_examples_body(b'{"examples": [{"\\ud800": 1}]}')


def test_results() -> None:
    labels, scores = np.array([[b"a", b"b"]], object), np.array([[0.1, np.nan]], np.float32)
    assert encode_result(Classification(labels, scores)) == b'{"results":[[["a",0.1],["b",NaN]]]}'
    assert encode_result(Classification(labels, None)) == b'{"results":[[["a",0.0],["b",0.0]]]}'
    assert encode_result(Classification(None, scores[:, :1])) == b'{"results":[[["",0.1]]]}'
    assert encode_result(Classification(labels, scores), strict=True) == b'{"results":[[["a",0.1],["b",null]]]}'
    assert encode_result(Regression(np.array([2, np.inf], np.float32))) == b'{"results":[2.0,Infinity]}'
