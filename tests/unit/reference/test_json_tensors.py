"""Tests of the reference server's JSON tensors that no case of the conformance tests can have."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import MalformedPayload
from service.reference.json_tensors import lookup_inputs, predict_inputs
from service.types import RaggedNames, SignatureSpec, TensorSpec

DTYPES = {"a": "int64", "b": "int64", "splits": "int64", "weights": "float32"}
SPEC = SignatureSpec(
    "s",
    "lookup",
    "",
    {name: TensorSpec(name, dtype, (None,)) for name, dtype in DTYPES.items()},
    {},
    tuple(RaggedNames(name, name, "splits", "weights") for name in "ab"),
)


def test_lists_of_features_that_share_row_splits_have_the_same_lengths() -> None:
    found = predict_inputs({"inputs": {"a": [[1, 2], [3]], "b": [[0, 1], [4]]}}, SPEC)
    assert {name: array.tolist() for name, array in found.items()} == {
        "a": [1, 2, 3],
        "b": [0, 1, 4],
        "splits": [0, 2, 3],
    }
    for document in (
        {"inputs": {"a": [[1, 2], [3]], "b": [[0], [1, 4]]}},
        {"instances": [{"a": [1, 2], "b": [0]}, {"a": [3], "b": [1, 4]}]},
    ):
        with pytest.raises(MalformedPayload, match='need the same "splits", but differ'):
            predict_inputs(document, SPEC)


@pytest.mark.parametrize(("second", "is_refused"), [([[1.0]], False), ([[2.0]], True)])
def test_weights_of_features_that_share_them_are_equal(second: Any, is_refused: bool) -> None:
    features, weights = {"a": [[1]], "b": [[0]]}, {"a": [[1.0]], "b": second}
    if is_refused:
        with pytest.raises(MalformedPayload, match='need the same "weights", but differ'):
            lookup_inputs(features, weights, SPEC)
    else:
        assert lookup_inputs(features, weights, SPEC)["weights"].tolist() == [1.0]
