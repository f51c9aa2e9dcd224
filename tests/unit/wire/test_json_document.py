"""Refuses text that is not JSON, and reads the numbers that plain JSON does not have."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.errors import MalformedPayload
from service.wire.json_document import describe, dump, parse_object


@pytest.mark.parametrize(
    ("body", "text"), [(b"", "The document is empty"), (b"  \n", "The document is empty. at offset: 3")]
)
def test_an_empty_body_has_tensorflow_serving_s_text(body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload, match=f"^JSON Parse error: {text}$"):
        parse_object(body)


def test_what_stands_behind_the_document_is_not_looked_at() -> None:
    assert parse_object(b'\xef\xbb\xbf {"a": 1} x') == {"a": 1}


def test_strict_takes_and_gives_no_bare_tokens() -> None:
    with pytest.raises(MalformedPayload, match="NaN is no JSON"):
        parse_object(b'{"a": [NaN]}', strict=True)
    array = np.array([1, np.nan, -np.inf], np.float32)
    assert dump({"a": array, "b": [np.float64("nan")]}, strict=True) == b'{"a":[1.0,null,null],"b":[null]}'


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a": 1e400}',
        b'{"a": "\\ud800"}',
        b'{"a": \xff}',
        b"[" * 500_000,
        b'{"a": NaN, "b": ' + b"[" * 500_000,
        b'{"a": ' * 100_000 + b"NaN",
        b'{"a": ' + b"[" * 100_000 + b"NaN" + b"]" * 100_000 + b"}",
        b'{"a": NaN, "b": \xff}',
        b'{"a": NaN, "b": ' + b"9" * 5000 + b"}",
        b'{"a": nan}',
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPayload, match="JSON Parse error: "):
        parse_object(body)


@pytest.mark.parametrize("body", [b"[1]", b"1", b'"x"', b"null", b"NaN"])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPayload, match="Is not object"):
        parse_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"inputs": {"x": [1], "y": [2], "x": [3]}}',
        b'{"instances": [{"x": 1}, {"x": 1, "x": 2}]}',
        b'{"inputs": {"\\u0078": 1, "x": 2}}',
        b'{"inputs": NaN, "inputs": 1}',
    ],
)
def test_a_key_that_comes_twice_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPayload, match='has the key "(a|x|inputs)" twice'):
        parse_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": {"x": ["a:b", "c"]}}',
        b'{"instances": [{"x": {"b64": "eA=="}}, {"x": {"b64": "eA=="}}]}',
        b'{"a": {"b": {"c": {"d": 1}}}}',
        b'{"a": [{"b": 1}, 2]}',
    ],
)
def test_colons_elsewhere_do_not_look_like_keys(body: bytes) -> None:
    assert parse_object(body) == json.loads(body)


def test_bare_tokens_are_numbers() -> None:
    values = parse_object(b'{"a": [NaN, Infinity, -Infinity, 1]}')["a"]
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf, 1]


def test_a_string_with_a_token_in_it_is_a_string() -> None:
    assert parse_object(b'{"a": "NaN"}') == {"a": "NaN"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null Type: Null"),
        (True, "true Type: True"),
        (1, "1 Type: Number"),
        ([1, [2.5]], "[1, [2.5]] Type: Array"),
        ([1] * 1000, "[" + "1, " * 85 + "1 Type: Array"),
        (10**400, "... Type: Number"),
    ],
)
def test_values_are_shown_with_their_type(value: object, text: str) -> None:
    assert describe(value) == text


@given(hnp.arrays(st.sampled_from([np.float32, np.float64]), hnp.array_shapes(max_dims=3, max_side=4)))
def test_floats_go_round_exactly_and_in_few_digits(array: np.ndarray) -> None:
    text = dump({"a": array, "null": [array[0]]})
    document = json.loads(text)
    assert np.array_equal(np.array(document["a"], array.dtype), array, equal_nan=True)
    assert np.array_equal(np.array(document["null"][0], array.dtype), array[0], equal_nan=True)


def test_float32_is_written_in_its_shortest_form() -> None:
    assert dump({"a": np.array([0.1, 1, 1e20], np.float32)}) == b'{"a":[0.1,1.0,1e+20]}'
    assert dump({"a": np.array([0.1, np.nan, 1e20, -np.inf], np.float32)}) == b'{"a":[0.1,NaN,1e+20,-Infinity]}'


def test_a_name_that_says_null_is_no_number() -> None:
    document = {"null": "null", "x": np.array([np.inf]), "e": [], "d": {}, "f": np.float32("nan")}
    assert dump(document) == b'{"null":"null","x":[Infinity],"e":[],"d":{},"f":NaN}'
