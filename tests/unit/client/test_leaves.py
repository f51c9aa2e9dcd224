"""Python values and arrays as they are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_client.errors import InvalidRequest
from embedding_client.leaves import leaf_array, to_array


@pytest.mark.parametrize(
    ("flat", "dtype", "values"),
    [
        ([], "int64", []),
        ([1, -2], "int64", [1, -2]),
        ([np.int32(3), 4], "int64", [3, 4]),
        ([1.5, 2], "float32", [1.5, 2]),
        ([np.float64(0.25)], "float32", [0.25]),
        ([True, np.bool_(False)], "bool", [True, False]),
        (["a", "é"], "object", [b"a", "é".encode()]),
        ([b"\0x", np.str_("y")], "object", [b"\0x", b"y"]),
    ],
)
def test_lists(flat: list[Any], dtype: str, values: list[Any]) -> None:
    array = leaf_array("x", flat)
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), values)


@pytest.mark.parametrize(
    ("flat", "problem"),
    [
        ([1, "a"], "all of one kind, got int, str"),
        ([True, 1], "all of one kind, got bool, int"),
        ([None], "NoneType"),
        ([1 << 63], "does not fit int64"),
        (["\ud800"], "lone surrogate"),
    ],
)
def test_what_can_not_be_sent(flat: list[Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^INVALID_ARGUMENT: x: .*{problem}"):
        leaf_array("x", flat)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float16", "float32", "float64", "bool", "complex64"])
def test_a_numpy_array_of_numbers_is_taken_as_it_is(dtype: str) -> None:
    array = np.zeros((2, 3), dtype)
    assert to_array("x", array) is array


def test_other_byte_orders_become_native() -> None:
    array = to_array("x", np.array([1, 2], ">i4"))
    assert array.dtype == np.int32
    assert array.dtype.isnative
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["U", "S", object])
def test_arrays_of_strings_become_bytes(dtype: Any) -> None:
    array = to_array("x", np.array([["a"], ["bc"]], dtype))
    assert array.dtype == object
    assert array.tolist() == [[b"a"], [b"bc"]]


def test_scalars_and_nested_lists_keep_their_rank() -> None:
    assert to_array("x", 3).shape == ()
    assert to_array("x", "abc").tolist() == b"abc"
    assert to_array("x", [[[1.0], [2.0]]]).shape == (1, 2, 1)
    assert to_array("x", [[], []]).shape == (2, 0)


@pytest.mark.parametrize("dtype", [object, "S3", "U3"])
def test_an_empty_array_of_strings_stays_one(dtype: Any) -> None:
    array = to_array("x", np.empty((0, 2), dtype))
    assert (array.dtype, array.shape) == (np.dtype(object), (0, 2))
    assert to_array("x", []).dtype == np.int64


@pytest.mark.parametrize("value", [[[1.0], [1.0, 2.0]], [1.0, [2.0]], [[[1.0]], [[1.0], [2.0]]]])
def test_unequal_lists_are_no_tensor(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="unequal length"):
        to_array("x", value)


def test_dates_can_not_be_sent() -> None:
    with pytest.raises(InvalidRequest, match="datetime64"):
        to_array("x", np.array(["2020-01-01"], "datetime64[D]"))
