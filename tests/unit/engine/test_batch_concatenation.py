"""Requests are joined end to end and split again: dense, ragged, weighted, strings, of unequal length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.batch_concatenation import concatenated, group, num_rows, repeated, rows_of
from service.errors import InputMismatch
from service.types import RaggedNames, SignatureSpec, TensorSpec
from tests.unit.engine.fakes import predict_spec


def ragged_spec() -> SignatureSpec:
    """Returns a signature with a dense input x and a ragged, weighted feature g."""
    inputs = {
        "x": TensorSpec("x", "float32", (None, 2)),
        "g__values": TensorSpec("g__values", "int64", (None,)),
        "g__row_splits": TensorSpec("g__row_splits", "int64", (None,)),
        "g__weights": TensorSpec("g__weights", "float32", (None,), is_optional=True),
    }
    outputs = {"y": TensorSpec("y", "float32", (None,))}
    return SignatureSpec("s", "predict", "", inputs, outputs, ragged_names=(RaggedNames.by_suffix("g"),))


def request(x: Any, rows: list[list[int]], weights: list[float] | None = None) -> dict[str, np.ndarray]:
    """Returns a request's inputs for the signature of ragged_spec."""
    splits = np.cumsum([0] + [len(row) for row in rows])
    made = {
        "x": np.array(x, np.float32).reshape(-1, 2),
        "g__values": np.array([i for row in rows for i in row], np.int64),
        "g__row_splits": splits.astype(np.int64),
    }
    return made if weights is None else made | {"g__weights": np.array(weights, np.float32)}


def lists(inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Converts arrays to lists, by name."""
    return {name: array.tolist() for name, array in inputs.items()}


A = request([[1, 2], [3, 4]], [[7, 8], []], [0.5, 0.25])
B = request([[5, 6]], [[9]], [2.0])


def test_ragged_rows_go_on_where_those_before_end() -> None:
    assert lists(concatenated(ragged_spec(), [A, B], pads=False)) == {
        "x": [[1, 2], [3, 4], [5, 6]],
        "g__values": [7, 8, 9],
        "g__row_splits": [0, 2, 2, 3],
        "g__weights": [0.5, 0.25, 2.0],
    }


def test_row_splits_keep_their_dtype() -> None:
    narrow = [r | {"g__row_splits": r["g__row_splits"].astype(np.int32)} for r in (A, B)]
    assert concatenated(ragged_spec(), narrow, pads=False)["g__row_splits"].dtype == np.int32


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)])
def test_rows_are_cut_out_with_their_ids_and_weights(begin: int, end: int) -> None:
    whole = request([[0, 0], [1, 1], [2, 2]], [[7], [8, 9], []], [0.1, 0.2, 0.3])
    ids: list[list[int]] = [[7], [8, 9], []]
    weights = {0: [0.1], 1: [0.2, 0.3], 2: []}
    expected = request(
        [[i, i] for i in range(begin, end)],
        ids[begin:end],
        [w for i in range(begin, end) for w in weights[i]],
    )
    assert lists(rows_of(ragged_spec(), whole, begin, end)) == lists(expected)


def test_a_row_is_repeated_with_its_ids() -> None:
    row = request([[1, 2]], [[7, 8]], [0.5, 1])
    assert lists(repeated(ragged_spec(), row, 2)) == lists(
        request([[1, 2], [1, 2]], [[7, 8], [7, 8]], [0.5, 1, 0.5, 1])
    )


def test_weights_left_empty_stay_empty() -> None:
    spec, unweighted = ragged_spec(), request([[1, 2], [3, 4]], [[7], [8]], [])
    assert rows_of(spec, unweighted, 0, 1)["g__weights"].size == 0
    assert concatenated(spec, [unweighted, unweighted], pads=False)["g__weights"].size == 0


def test_strings_are_laid_end_to_end() -> None:
    spec = predict_spec(x=TensorSpec("x", "string", (None,)))
    parts = [{"x": np.array([b"a\0", b""], object)}, {"x": np.array([b"longer"], object)}]
    assert concatenated(spec, parts, pads=False)["x"].tolist() == [b"a\0", b"", b"longer"]


@pytest.mark.parametrize("filling", [3, b"s"])
def test_unequal_lengths_are_filled_with_the_first_value(filling: Any) -> None:
    dtype = object if isinstance(filling, bytes) else np.int64
    spec = predict_spec(x=TensorSpec("x", "string", (None, None)))
    long, short = np.full((1, 3), filling, dtype), np.full((2, 1), filling, dtype)
    long[0, 1] = short[1, 0] = b"other" if isinstance(filling, bytes) else 9
    joined = concatenated(spec, [{"x": long}, {"x": short}], pads=True)["x"]
    other = long[0, 1]
    assert joined.tolist() == [[filling, other, filling], [filling, filling, filling], [other, filling, filling]]


def test_who_may_share_a_batch() -> None:
    spec = ragged_spec()

    def key(**changed: np.ndarray) -> Any:
        return group(spec, A | changed, pads=False)

    assert key() == group(spec, B, pads=False)
    assert key() != key(x=A["x"].astype(np.float64))
    assert key() != key(x=np.zeros((2, 3), np.float32))
    assert key() != group(spec, {n: a for n, a in A.items() if n != "g__weights"}, pads=False)
    # Empty weights mean weight 1 for every id. Joined to the weights of another request, they would be too few.
    assert key() != key(g__weights=np.zeros(0, np.float32))


def test_padding_lets_unequal_inner_sizes_share_but_not_ranks_nor_what_is_empty() -> None:
    spec = predict_spec(x=TensorSpec("x", "float32", None))

    def key(*shape: int) -> Any:
        return group(spec, {"x": np.zeros(shape, np.float32)}, pads=True)

    assert key(1, 2) == key(3, 4)
    assert key(1, 2) != key(1, 2, 1)
    assert key(1, 2) != key(1, 0)
    assert key(1, 0) == key(2, 0)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "Batching Run() must have at least one input tensor"),
        ({"x": np.float32(1)}, "Batching Run() input tensors must have at least one dimension"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "Batching Run() input tensors must have equal 0th-dimension size"),
    ],
)
def test_a_request_without_one_number_of_rows_is_refused(inputs: dict[str, Any], text: str) -> None:
    spec = predict_spec(x=TensorSpec("x", "float32", None), y=TensorSpec("y", "float32", None))
    with pytest.raises(InputMismatch) as refused:
        num_rows(spec, {name: np.asarray(value) for name, value in inputs.items()})
    assert refused.value.message == text


def test_ragged_features_count_rows_not_ids() -> None:
    assert num_rows(ragged_spec(), A) == 2
    with pytest.raises(InputMismatch, match="equal 0th-dimension size"):
        num_rows(ragged_spec(), A | {"x": np.zeros((3, 2), np.float32)})
