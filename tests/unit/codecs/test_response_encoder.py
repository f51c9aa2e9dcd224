"""Answers whose surroundings are remembered are those that are encoded anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.codecs import response_encoder
from service.codecs.predict_proto import encode_response
from service.codecs.protos import message_class
from service.codecs.response_encoder import ResponseEncoder

NAMES: dict[str, Any] = {"model": "m", "version": 7, "signature_name": "s"}


def encoder() -> ResponseEncoder:
    return ResponseEncoder("m", 7, "s")


@pytest.mark.parametrize("as_content", [False, True])
def test_every_time_the_same_as_encoded_anew(as_content: bool) -> None:
    made = encoder()
    for start in range(3):
        for rows in (1, 2, 128):
            score = np.arange(start, start + rows, dtype=np.float32).reshape(rows, 1)
            outputs = {"score": score, "vector": np.full((rows, 3), start, np.float32)}
            expected = encode_response(outputs, as_content=as_content, **NAMES)
            assert made.encode(outputs, as_content=as_content) == expected


def test_both_forms_are_kept_apart() -> None:
    made = encoder()
    outputs = {"score": np.float32([[1.5]])}
    assert made.encode(outputs, as_content=False) != made.encode(outputs, as_content=True)
    for as_content in (False, True):
        answer = message_class("tensorflow.serving.PredictResponse").FromString(
            made.encode(outputs, as_content=as_content)
        )
        tensor = answer.outputs["score"]
        assert (tensor.tensor_content or np.float32(list(tensor.float_val)).tobytes()) == np.float32(1.5).tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 1), np.float32),
        np.int64([[-1], [300]]),
        np.array([[b"one"], [b"three"]], object),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.float64([1.5, 2.5]),
        np.float32(3.5),
    ],
    ids=["empty", "varints", "strings", "not contiguous", "double", "scalar"],
)
def test_what_is_not_plain(array: Any) -> None:
    made = encoder()
    # A scalar's shape is the empty tuple, but it is an array here as it is in TensorFlow's answers.
    outputs = {"out": np.asarray(array)}
    for _ in range(2):
        assert made.encode(outputs, as_content=False) == encode_response(outputs, **NAMES)


def test_no_more_shapes_are_remembered_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_encoder, "_MOST_SHAPES", 2)
    made = encoder()
    for rows in range(1, 6):
        outputs = {"score": np.zeros((rows, 1), np.float32)}
        assert made.encode(outputs, as_content=False) == encode_response(outputs, **NAMES)
    assert len(made._around) <= 2
