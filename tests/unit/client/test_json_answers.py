"""The client reads JSON's numbers exactly to the last bit, as numpy's own reader of float32 decimals does."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from embedding_client.json_answers import float32_array, typed_array
from embedding_client.types import TensorDescription

# (bits of a float32, bits of the float32 to which its decimal form leads if it is first rounded to a float64).
ROUNDED_TWICE = [(363742205, 363742206)]


def written(array: np.ndarray) -> bytes:
    """Returns an array's JSON as the server writes it."""
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(("bits", "wrong_bits"), ROUNDED_TWICE)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_beside_the_middle_of_two_floats_is_rounded_once(bits: int, wrong_bits: int, sign: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32) * np.float32(sign)
    document = orjson.loads(written(value))
    assert np.array(document, np.float32).view(np.uint32)[0] & 0x7FFFFFFF == wrong_bits, "numpy alone is wrong here"
    assert float32_array(document).tobytes() == value.tobytes()


def test_floats_of_every_exponent_come_back() -> None:
    fractions = np.random.default_rng(5).integers(0, 1 << 23, (255, 250), np.uint32)
    values = (fractions | np.arange(255, dtype=np.uint32)[:, None] << 23).view(np.float32)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


def test_the_edges_come_back() -> None:
    info = np.finfo(np.float32)
    edges = [0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 1 + info.eps]
    values = np.array(edges, np.float32).reshape(2, 4)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(16777217, 16777216), (16777219, 16777220), (1e39, np.inf), (-1e39, -np.inf), (1e-46, 0), (7e-46, 0)],
)
def test_ties_go_to_the_even_and_what_is_too_large_is_infinite(value: float, expected: float) -> None:
    # 7e-46 is just below the middle between 0 and the smallest float32, so it rounds to 0.
    assert float32_array([value])[0] == expected


def test_shapes_and_tokens() -> None:
    array = float32_array([[1, float("nan")], [float("-inf"), 2.5]])
    np.testing.assert_array_equal(array, np.array([[1, np.nan], [-np.inf, 2.5]], np.float32), strict=True)
    assert float32_array(0.1).shape == ()
    assert float32_array(7.038531e-26).shape == ()


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int64", [9007199254740993], np.array([9007199254740993])),
        ("uint8", [255], np.array([255], np.uint8)),
        ("float64", [0.1], np.array([0.1])),
        ("float16", [0.1], np.array([0.1], np.float16)),
        ("bool", [True, False], np.array([True, False])),
        ("float32", 1.5, np.float32(1.5)),
        ("string", [["é"], [{"b64": "AP8="}]], np.array([["é".encode()], [b"\0\xff"]], object)),
        ("string", {"b64": "AP8="}, np.array(b"\0\xff", object)),
    ],
)
def test_dtypes_are_the_signatures(dtype: str, value: Any, expected: Any) -> None:
    array = typed_array(value, TensorDescription(dtype, None))
    np.testing.assert_array_equal(array, np.asarray(expected), strict=True)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [([], (None, 8), (0, 8)), ([[], []], (None, 0, 3), (2, 0, 3)), ([], None, (0,)), ([], (None, None), (0, 0))],
)
def test_an_empty_list_has_the_signatures_shape(
    value: Any, shape: tuple[int | None, ...] | None, expected: tuple[int, ...]
) -> None:
    assert typed_array(value, TensorDescription("float32", shape)).shape == expected
