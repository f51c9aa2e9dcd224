"""An input that does not fit is named behind the graph's own text, and only if that is known."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.refused_inputs import explained, shape_faults
from service.types import SignatureSpec, TensorSpec

RANKS = "ConcatOp : Ranks of all input tensors should match: shape[0] = [1,4] vs. shape[2] = [1]"
GATHER = "indices[0,2] = 1000 is not in [0, 1000)"
SPEC = SignatureSpec(
    "s",
    "predict",
    "",
    {
        "age": TensorSpec("age", "float32", (None, 1)),
        "ids": TensorSpec("ids", "int64", (None, None)),
        "more": TensorSpec("more", "int32", None),
    },
    {"y": TensorSpec("y", "float32", (None, 1))},
)


def test_inputs_whose_shapes_contradict_the_signature_are_named() -> None:
    fault = 'input "age": the signature declares [?, 1], the request has [1].'
    assert shape_faults(SPEC, {"age": np.ones(1, np.float32), "ids": np.ones((1, 4), np.int64)}) == fault
    assert explained(RANKS, SPEC, {"age": np.ones(1, np.float32)}) == f"{RANKS}; {fault}"
    both = {"age": np.ones((2, 3), np.float32), "ids": np.ones(3, np.int64), "more": np.ones((), np.int32)}
    assert shape_faults(SPEC, both) == (
        'input "age": the signature declares [?, 1], the request has [2, 3]. '
        'input "ids": the signature declares [?, ?], the request has [3].'
    )


def test_shapes_that_agree_add_nothing() -> None:
    agreeing = {"age": np.ones((7, 1), np.float32), "ids": np.ones((2, 0), np.int64)}
    assert shape_faults(SPEC, agreeing) == "" and explained(RANKS, SPEC, agreeing) == RANKS


@pytest.mark.parametrize(
    "text",
    [
        GATHER,
        f"{GATHER} [Op:Gather]",
        "Bad: indices[3] == 1000 out of range [0, 50)",
        "indices[0, 2] = 1000 is not in [0, 9)",
    ],
)
def test_the_only_input_with_the_refused_id_is_named(text: str) -> None:
    ids, more = np.array([[1, 1000, 1000]]), np.array([5], np.int32)
    fault = 'input "ids": has 1000 at position 1.'
    assert explained(text, SPEC, {"ids": ids, "more": more}) == f"{text}; {fault}"
    # No input is named if several have the id, if none has it because the graph computed it, or if floats have it.
    for inputs in (
        {"ids": ids, "more": np.array([1000], np.int32)},
        {"ids": np.array([[7]])},
        {"age": np.array([[1e3]])},
    ):
        assert explained(text, SPEC, inputs) == text
