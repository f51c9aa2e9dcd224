"""Parses JSON bodies with lists of ids, keys and rows, refuses faulty ones, and names the first fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import MalformedPayload, PayloadTooLarge
from service.types import Array
from service.wire.json_body import (
    MAX_KEYS,
    MAX_LISTS,
    MAX_STRINGS,
    dump_plain,
    id_list,
    key_list,
    parse_body,
    row_list,
)


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """Sets the interpreter's usual limit of nesting, which a library in this process may have raised."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


KEYS = frozenset({"a", "b", "c"})
DEEP = b"[" * 1000 + b"]" * 1000


def parse(body: bytes) -> dict[str, object]:
    """Parses a body that may have the keys a, b and c."""
    return parse_body("A search", body, KEYS)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The body is not JSON: Input is a zero-length, empty document"),
        (b'{"a": 1} x', "The body is not JSON: unexpected content after document"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": \xff}', "The body is not JSON: "),
        (b'{"a": "\\ud800"}', "The body is not JSON: no low surrogate"),
        (b'{"a": 1e400}', "number is infinity"),
        (b'{"a": [1, NaN]}', "line 1 column 11 (char 10). JSON has no NaN and no Infinity."),
        (b'{"a": -Infinity}', "JSON has no NaN and no Infinity."),
        (b'{"a": Inf}', "JSON has no NaN and no Infinity."),
        (b"[" * 500_000, "The body is not JSON: depth limit exceeded"),
        (b'{"a": ' * 100_000, "The body is not JSON: depth limit exceeded"),
        (b"null", "A search is a JSON object, the body is null."),
        (b'["' + b"x" * 100 + b'"]', 'A search is a JSON object, the body is ["' + "x" * 58 + "...."),
        (b'{"d": 1, "A": 2}', "Unknown keys: A, d. A search has: a, b, c."),
        (b"{%s}" % b",".join(b'"k%02d":1' % i for i in range(30)), "k08, k09. A search has"),
        (b'{"a": 1, "a": 2}', 'The body has the key "a" twice in one object.'),
        (b'{"a": [{"b64": "x", "b64": "x"}]}', 'The body has the key "b64" twice in one object.'),
        (b'{"a": {"x": 1}, "b": {"x": 1, "x": 2}}', 'The body has the key "x" twice in one object.'),
        (b'{"a": "::", "b": ' + DEEP + b"}", "nested too deeply"),
    ],
)
@pytest.mark.usefixtures("usual_limit")
def test_a_body_that_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        parse(body)
    assert text in caught.value.message and len(caught.value.message) < 400


def test_colons_in_strings_are_no_keys() -> None:
    assert parse(b'{"a": "x:y", "b": [{"b64": ":"}, {"b64": ""}]}') == {"a": "x:y", "b": [{"b64": ":"}, {"b64": ""}]}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"a":{%s}}' % b",".join(b'"%d":1' % number for number in range(MAX_KEYS)), "keys"),
        (b'{"a":[%s]}' % b",".join([b"[]"] * MAX_LISTS), "lists"),
        (b'{"a":[' + b'"",' * MAX_STRINGS + b'""]}', "strings"),
    ],
    ids=["keys", "lists", "strings"],
)
def test_a_body_of_too_many_values_is_refused(body: bytes, word: str) -> None:
    with pytest.raises(PayloadTooLarge, match=word):
        parse(body)


def test_ids() -> None:
    assert id_list("ids", [0, 2**63 - 1, -(2**63)]).tolist() == [0, 2**63 - 1, -(2**63)]
    assert id_list("ids", []).dtype == np.int64


def test_keys() -> None:
    assert key_list("keys", ["ä", {"b64": "/w=="}, ""]).tolist() == ["ä".encode(), b"\xff", b""]
    assert key_list("keys", [1, 2]).dtype == np.int64
    assert key_list("keys", []).size == 0


@pytest.mark.parametrize(
    ("convert", "value", "text"),
    [
        (id_list, None, '"n" is null, expected a flat list.'),
        (id_list, [1, 2.0], '"n"[1] is 2.0, expected an integer.'),
        (id_list, [0, 2**63], '"n"[1] is 9223372036854775808, which does not fit int64.'),
        (key_list, "x", '"n" is "x", expected a flat list.'),
        (key_list, ["x", 1], '"n"[1] is 1, expected a string or {"b64": "..."}, or an integer as all keys.'),
        (key_list, [1, "x"], '"n"[1] is "x", expected an integer.'),
        (key_list, [{"b64": "?"}], '"n"[0] is {"b64":"?"}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{"b64": 1}], '"n"[0] is {"b64":1}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{}], '"n"[0] is {}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{"b64": "ä"}], "with base64 text."),
        (key_list, [[]], '"n"[0] is [], expected a string'),
        (row_list, None, '"n" is not a list of lists of numbers.'),
        (row_list, [[1], 2], '"n" is not a list of lists of numbers.'),
        (row_list, [[1], [2, 3]], '"n"[1] has 2 numbers, "n"[0] has 1.'),
        (row_list, [[1, 2], [2, None]], '"n"[1][1] is null, expected a number.'),
        (row_list, [[1], [True]], '"n"[1][0] is true, expected a number.'),
    ],
)
def test_a_list_that_is_refused(convert: object, value: object, text: str) -> None:
    assert callable(convert)
    with pytest.raises(MalformedPayload) as caught:
        convert("n", value)
    assert text in caught.value.message


@given(st.lists(st.lists(st.floats(width=32) | st.integers(-1000, 1000), min_size=3, max_size=3), max_size=4))
def test_rows(rows: list[list[float]]) -> None:
    found = row_list("rows", rows)
    assert found.dtype == np.float32 and found.shape == (len(rows), 3 if rows else 0)
    np.testing.assert_array_equal(found, np.array(rows, np.float32).reshape(found.shape))


def test_rows_of_no_numbers_and_of_too_large_numbers() -> None:
    assert row_list("rows", [[], []]).shape == (2, 0)
    assert row_list("rows", [[1e39, 18446744073709551615]]).tolist() == [[np.inf, 2.0**64]]


def test_answers_are_plain_json() -> None:
    values: Array = np.array([[1, np.nan], [np.inf, 0.1]], np.float32)
    assert dump_plain({"a": values, "b": [values[0], np.float64("-inf")]}) == (
        b'{"a":[[1.0,null],[null,0.1]],"b":[[1.0,null],null]}'
    )
