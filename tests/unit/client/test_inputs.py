"""Checks which inputs the client sends as one id per row, which as ragged ids, and which it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_client.errors import InvalidRequest
from embedding_client.inputs import feature_ids, lookup_ids, tensors
from embedding_client.leaves import leaf_array, to_array
from embedding_client.types import RaggedIds

ROWS = [[1, 5], [], [7]]
SPLITS = [0, 2, 2, 3]


def parts(ids: Any) -> tuple[list[Any], list[int]]:
    """Returns the values and row splits of ids that must be a RaggedIds."""
    assert isinstance(ids, RaggedIds)
    assert ids.row_splits.dtype == np.int64
    return ids.values.tolist(), ids.row_splits.tolist()


@pytest.mark.parametrize(
    "value", [[4, 5], (4, 5), np.array([4, 5]), np.array([4, 5], object), np.array([4, 5], np.int32)]
)
def test_flat_is_one_id_per_row(value: Any) -> None:
    ids = feature_ids("f", value)
    assert not isinstance(ids, RaggedIds)
    assert ids.tolist() == [4, 5]


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        tuple(map(tuple, ROWS)),
        [np.array(row, np.int32) for row in ROWS],
        np.array([np.array(row, int) for row in ROWS], object),
        RaggedIds(np.array([1, 5, 7]), np.array(SPLITS)),
        RaggedIds(np.array([1, 5, 7]), np.array(SPLITS, np.int32)),
        RaggedIds([1, 5, 7], SPLITS),  # type: ignore[arg-type]
    ],
    ids=["lists", "tuples", "arrays", "object array", "RaggedIds", "int32 splits", "RaggedIds of lists"],
)
def test_nested_is_ragged(value: Any) -> None:
    assert parts(feature_ids("f", value)) == ([1, 5, 7], SPLITS)


def test_a_matrix_is_ragged_whatever_its_width() -> None:
    assert parts(feature_ids("f", np.array([[1, 2], [3, 4]]))) == ([1, 2, 3, 4], [0, 2, 4])
    assert parts(feature_ids("f", np.empty((3, 0), np.int64))) == ([], [0, 0, 0, 0])
    assert parts(feature_ids("f", np.array([["a"], ["b"]]))) == ([b"a", b"b"], [0, 1, 2])


def test_rows_without_any_id_are_int64() -> None:
    ids = feature_ids("f", [[], []])
    assert parts(ids) == ([], [0, 0, 0])
    assert isinstance(ids, RaggedIds)
    assert ids.values.dtype == np.int64


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "got int"),
        ("drama", "got str"),
        (np.int64(5), "got int64"),
        (np.zeros((1, 1, 1), int), "rank 3"),
        ([[[1]]], "got list"),
        ([1, [2]], "lists and bare values are mixed"),
        ([1, "a"], "all of one kind"),
        ([["a"], [1]], "all of one kind"),
        (RaggedIds(np.array([1]), np.array([0, 2])), "end with the number of values, 1"),
        (RaggedIds(np.array([1]), np.array([1, 1])), "start with 0"),
        (RaggedIds(np.array([1]), np.array([0, 2, 1])), "not decrease"),
        (RaggedIds(np.array([1]), np.array([], int)), "row_splits"),
        (RaggedIds(np.array([[1]]), np.array([0, 1])), "rank 1"),
        (RaggedIds(np.array([1]), np.array([0.0, 1.0])), "integers"),
    ],
)
def test_what_are_no_ids(value: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f'feature "f".*{problem}'):
        feature_ids("f", value)


@pytest.mark.parametrize("weights", [[[1.5, 2], [], [0.25]], [1.5, 2, 0.25], np.array([1.5, 2, 0.25])])
def test_weights_are_nested_as_the_ids_or_flat(weights: Any) -> None:
    ids = lookup_ids({"f": ROWS}, {"f": weights})["f"]
    assert isinstance(ids, RaggedIds)
    assert ids.weights is not None
    assert ids.weights.dtype == np.float32
    assert ids.weights.tolist() == [1.5, 2, 0.25]


def test_a_matrix_takes_a_matrix_of_weights() -> None:
    ids = feature_ids("f", np.array([[1, 2]]), np.array([[0.5, 1]]))
    assert isinstance(ids, RaggedIds)
    assert ids.weights is not None
    assert ids.weights.tolist() == [0.5, 1]


@pytest.mark.parametrize(
    ("value", "weights", "problem"),
    [
        ([1, 2], [1.0, 1.0], "takes no weights"),
        (ROWS, [[1.0], [1.0], [1.0]], "in rows as long"),
        (ROWS, [1.0, 1.0], "one weight per id"),
        (ROWS, ["a", "b", "c"], "expected numbers"),
        (ROWS, 1.0, "got float"),
        (RaggedIds(np.array([1]), np.array([0, 1]), np.array([1.0])), [1.0], "both"),
    ],
)
def test_weights_that_do_not_fit(value: Any, weights: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f'feature "f".*{problem}'):
        lookup_ids({"f": value}, {"f": weights})


def test_weights_need_their_ids() -> None:
    with pytest.raises(InvalidRequest, match='"g": weights were sent without ids'):
        lookup_ids({"f": ROWS}, {"g": [1.0]})


def test_a_lookup_needs_a_feature() -> None:
    with pytest.raises(InvalidRequest, match="at least one feature"):
        lookup_ids({}, None)


def test_a_predict_tells_ragged_by_nested_ids_and_nothing_else() -> None:
    arrays = tensors(
        {
            "a": [[1, 2], [3]],
            "b": RaggedIds(np.array([1]), np.array([0, 1]), np.array([0.5])),
            "c": np.array([[1, 2]]),
            "d": [[1.0, 2.0]],
            "e": [1, 2],
            "f": 3.5,
            "g": [["x"]],
            "h": [[True]],
            "i": [],
            "j": [[[1]]],
        }
    )
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "a__values": ("int64", (3,)),
        "a__row_splits": ("int64", (3,)),
        "b__values": ("int64", (1,)),
        "b__row_splits": ("int64", (2,)),
        "b__weights": ("float32", (1,)),
        "c": ("int64", (1, 2)),
        "d": ("float32", (1, 2)),
        "e": ("int64", (2,)),
        "f": ("float32", ()),
        "g__values": ("object", (1,)),
        "g__row_splits": ("int64", (2,)),
        "h": ("bool", (1, 1)),
        "i": ("int64", (0,)),
        "j": ("int64", (1, 1, 1)),
    }


@pytest.mark.parametrize("features", [[1, 2], "user", None, 3])
def test_features_and_inputs_are_dicts(features: Any) -> None:
    kind = type(features).__name__
    for call, what in ((lambda: lookup_ids(features, None), "features"), (lambda: tensors(features), "inputs")):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.message == f'{what}: expected a dict such as {{"user_id": [1, 2]}}, got {kind}.'
        with pytest.raises(InvalidRequest, match=f"{what}: expected names as strings, such as .user_id., got 1"):
            lookup_ids({1: [2]}, None) if what == "features" else tensors({1: [2]})  # type: ignore[dict-item]


@pytest.mark.parametrize("ids", [[1.5], [[1.5], []], [True], np.array([1.0])])
def test_ids_are_integers_or_strings(ids: Any) -> None:
    with pytest.raises(
        InvalidRequest, match='^INVALID_ARGUMENT: feature "user": expected integers or strings as ids, got'
    ):
        lookup_ids({"user": ids}, None)


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
