"""Compares this project's JSON with that of TensorFlow Serving, case by case; rapidjson's source gives the cases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.wire.json_text import parse_fault, shown


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b" ", "The document is empty. at offset: 1"),
        (b"}", "The document is empty. at offset: 0"),
        (b"x", "Invalid value. at offset: 0"),
        (b'{"a": tru}', "Invalid value. at offset: 9"),
        (b"[1,]", "Invalid value. at offset: 3"),
        (b"[", "Invalid value. at offset: 1"),
        (b'{"a": -}', "Invalid value. at offset: 7"),
        (b'{"a":1,}', "Missing a name for object member. at offset: 7"),
        (b"{'a': 1}", "Missing a name for object member. at offset: 1"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at offset: 5"),
        (b'{"a":1 "b"}', "Missing a comma or } after an object member. at offset: 7"),
        (b'{"a": 01}', "Missing a comma or } after an object member. at offset: 7"),
        (b'{"a": 1', "Missing a comma or } after an object member. at offset: 7"),
        (b"[1 2]", "Missing a comma or ] after an array element. at offset: 3"),
        (b'{"a":"x', "Missing a closing quotation mark in string. at offset: 7"),
        (b'{"a":"x\0"}', "Missing a closing quotation mark in string. at offset: 7"),
        (b'{"a":"\\x"}', "Invalid escape character in string. at offset: 6"),
        (b'{"a":"\n"}', "Invalid encoding in string. at offset: 6"),
        (rb'{"a":"\u12"}', "Incorrect hex digit after \\u escape in string. at offset: 6"),
        (rb'{"a":"\ud800"}', "The surrogate pair in string is invalid. at offset: 6"),
        (rb'{"a":"\ud800\u0041"}', "The surrogate pair in string is invalid. at offset: 6"),
        (b'{"a":1.}', "Miss fraction part in number. at offset: 7"),
        (b'{"a":1e+}', "Miss exponent in number. at offset: 8"),
        (b'{"a":1e999}', "Number too big to be stored in double. at offset: 5"),
        (b"[" * 500_000, "Invalid value. at offset: 500000"),
        (b'{"a": [NaN, -Infinity, "\xc3\xa4", 1e5], "b": {}} and more', ""),
        (rb'{"a": "\ud83d\ude00\n"}', ""),
    ],
)
def test_faults(text: bytes, fault: str) -> None:
    assert parse_fault(text) == fault


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON.filter(lambda value: "\\u0000" not in json.dumps(value)))
def test_json_has_no_fault(value: Any) -> None:
    assert parse_fault(json.dumps(value).encode()) == ""


@given(JSON)
def test_what_is_shown_whole_reads_back(value: Any) -> None:
    text = shown(value)
    if len(text.encode("utf-8", "replace")) < 256:
        assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"a": {"b": []}}, '{\n    "a": {\n        "b": []\n    }\n}'),
        ([{"a": 1}, 2], '[{\n        "a": 1\n    }, 2]'),
        ('\x01\n"', '"\\u0001\\n\\""'),
        (1e-5, "0.00001"),
        (1e25, "1e25"),
        (-1.5e-9, "-1.5e-9"),
        (123456789.5, "123456789.5"),
        (1e20, "100000000000000000000.0"),
        ([float("nan"), 1], "["),
        # The second string begins after 255 bytes and is shown whole; the third string is left out.
        (["x" * 252, "y" * 300, "z"], '["' + "x" * 252 + '", "' + "y" * 300 + '"'),
    ],
)
def test_shown(value: Any, text: str) -> None:
    assert shown(value) == text
