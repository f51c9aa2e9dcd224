"""Checks which answers the fuzzer accepts."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from loadtest.fuzz import wires as verdicts
from loadtest.wire import message_class

JSON = "application/json"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


class Refusal(grpc.RpcError):
    """The error that a gRPC stub raises, with this code and text."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = lambda: code
        self.details = lambda: details


@pytest.mark.parametrize(
    ("code", "details", "is_good"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "Input is empty.", True),
        (grpc.StatusCode.NOT_FOUND, "no", True),
        (grpc.StatusCode.INVALID_ARGUMENT, "", False),
        (grpc.StatusCode.INTERNAL, "Internal error", False),
        (grpc.StatusCode.UNKNOWN, "Exception calling application", False),
        (grpc.StatusCode.UNAVAILABLE, "Connection reset by peer", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", False),
    ],
)
def test_a_refusal_must_blame_the_request_and_say_why(code: grpc.StatusCode, details: str, is_good: bool) -> None:
    verdict = verdicts.of_grpc_error(Refusal(code, details))
    assert verdict.status == code.name
    assert (verdict.problem == "") is is_good


def tensor(**fields: Any) -> Any:
    """Returns a float TensorProto of shape [2, 1]."""
    message = message_class("tensorflow.TensorProto")(dtype=1, **fields)
    for size in (2, 1):
        message.tensor_shape.dim.add().size = size
    return message


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"float_val": [1, 2]}, True),
        ({"tensor_content": bytes(8)}, True),
        ({"float_val": [1]}, False),
        ({"int_val": [1, 2]}, False),
        ({"tensor_content": bytes(4)}, False),
    ],
)
def test_a_tensor_must_hold_what_its_shape_says(fields: dict[str, Any], is_good: bool) -> None:
    assert (verdicts.tensor_problem(tensor(**fields)) == "") is is_good
    response = message_class("tensorflow.serving.PredictResponse")()
    response.outputs["y"].CopyFrom(tensor(**fields))
    assert (verdicts.of_grpc_answer(PREDICT, response.SerializeToString()).problem == "") is is_good


def test_a_tensor_must_say_its_shape_and_dtype() -> None:
    message = tensor()
    message.tensor_shape.dim[0].size = -1
    assert verdicts.tensor_problem(message)
    assert verdicts.tensor_problem(message_class("tensorflow.TensorProto")(dtype=0))


def test_an_answer_must_be_a_message() -> None:
    assert verdicts.of_grpc_answer(PREDICT, b"\xff").problem


@pytest.mark.parametrize(
    ("status", "content_type", "body", "is_good"),
    [
        (200, JSON, b'{"outputs": [NaN]}', True),
        (200, JSON, b'{"embeddings": {}}', False),
        (200, JSON, b'{"outputs": [1], "more": 2}', False),
        (200, JSON, b'{"outputs": [1}', False),
        (200, "text/plain", b'{"outputs": [1]}', False),
        (400, JSON, b'{"error": "why"}', True),
        (400, JSON, b'{"error": ""}', False),
        (400, JSON, b'{"error": 1}', False),
        (400, JSON, b'{"detail": "why"}', False),
        (400, JSON, b'{"error": "\xff"}', False),
        (400, JSON, b'["error"]', False),
        (422, JSON, b'{"error": "why"}', False),
        (500, JSON, b'{"error": "why"}', False),
        (503, JSON, b'{"error": "why"}', False),
    ],
)
def test_an_http_answer_is_a_result_or_an_error_of_the_request(
    status: int, content_type: str, body: bytes, is_good: bool
) -> None:
    verdict = verdicts.of_http(status, content_type, body, ("predictions", "outputs"))
    assert verdict.status == str(status)
    assert (verdict.problem == "") is is_good
