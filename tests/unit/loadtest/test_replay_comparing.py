"""Checks what a replay compares, what it masks, and which changes a list of intended ones covers."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from loadtest.replay.comparing import Difference, Intended, differences, read_intended, without_nan_signs
from loadtest.replay.requests import Request
from loadtest.wire import framed, message_class

LOOKUP = Request(
    "lookup", "random 1", "POST", "/v1/models/toy:lookup", (("x-request-id", "mine"),), b'{"features": {}}'
)
PREDICT = Request("grpc_predict", "random 2", "GRPC", "/tensorflow.serving.PredictionService/Predict", (), b"")


def http(status: int, body: bytes, **headers: str) -> dict[str, Any]:
    """Makes an answer as it is stored."""
    pairs = [[name.replace("_", "-"), value] for name, value in headers.items()]
    return {"status": status, "headers": pairs, "body": base64.b64encode(body).decode()}


def grpc(message: bytes, flag: int = 0, **headers: str) -> dict[str, Any]:
    """Makes an answer over gRPC as it is stored."""
    pairs = [[name.replace("_", "-"), value] for name, value in headers.items()]
    return {"headers": pairs, "body": base64.b64encode(framed(message, flag)).decode(), "reset": None}


def parts(request: Request, was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the names of the parts that differ."""
    return [difference.part for difference in differences(request, [was], now)[0]]


def test_dates_own_request_ids_and_the_order_of_maps_are_masked() -> None:
    was = http(200, b'{"a":1.50,"b":[2]}', date="Mon", x_request_id="one")
    now = http(200, b'{"b":[2],"a":1.50}', date="Tue", x_request_id="two")
    assert parts(LOOKUP, was, now) == []


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "<f4", "<f8"])
@pytest.mark.parametrize("request_", [LOOKUP, PREDICT])
def test_signs_of_nan_may_be_left_out(request_: Request, dtype: Any) -> None:
    def answer(*numbers: float) -> dict[str, Any]:
        data = np.array(numbers, dtype).tobytes()
        if request_ is LOOKUP:
            return http(200, data)
        response = message_class("tensorflow.serving.PredictResponse")()
        response.outputs["a"].tensor_content = data
        return grpc(response.SerializeToString())

    nan = float(np.copysign(np.nan, 1))
    for was, now, is_equal in ((nan, -nan, True), (1.0, -1.0, False), (nan, 1.0, False), (nan, float("inf"), False)):
        assert parts(request_, answer(was), answer(now)) == ["body"]
        masked = differences(request_, [answer(was)], answer(now), without_nan_signs)[0]
        assert [difference.part for difference in masked] == ["body"] * (not is_equal)


@pytest.mark.parametrize(
    ("now", "differing"),
    [
        (http(400, b'{"a":1.50}', x="y"), ["status"]),
        (http(200, b'{"a":1.5}', x="y"), ["body"]),
        (http(200, b'{"a": 1.50}', x="y"), ["body"]),
        (http(200, b'{"a":1.51}', x="y"), ["body"]),
        (http(200, b'{"a":1.50', x="y"), ["body"]),
        (http(200, b'{"a":1.50}', x="z"), ["header x"]),
        (http(200, b'{"a":1.50}'), ["header x"]),
        (http(200, b'{"a":1.50}', x="y", more="1"), ["header more"]),
        (http(200, gzip.compress(b'{"a":1.50}'), x="y", content_encoding="gzip"), ["header content-encoding"]),
        ({"lost": "ConnectionError"}, ["body", "header x", "lost", "status"]),
    ],
)
def test_everything_else_is_compared(now: dict[str, Any], differing: list[str]) -> None:
    assert parts(LOOKUP, http(200, b'{"a":1.50}', x="y"), now) == differing


def test_a_given_request_id_must_come_back() -> None:
    assert parts(LOOKUP, http(200, b"{}", x_request_id="mine"), http(200, b"{}", x_request_id="other")) == [
        "header x-request-id"
    ]


def test_messages_are_compared_without_the_order_of_maps() -> None:
    response = message_class("tensorflow.serving.PredictResponse")

    def one(name: str, value: float) -> bytes:
        message = response()
        message.outputs[name].float_val.append(value)
        return bytes(message.SerializeToString())

    was = grpc(one("a", 1) + one("b", 2), grpc_status="0")
    assert parts(PREDICT, was, grpc(one("b", 2) + one("a", 1), grpc_status="0")) == []
    assert parts(PREDICT, was, grpc(one("b", 2) + one("a", 3), grpc_status="0")) == ["body"]
    assert parts(PREDICT, was, grpc(gzip.compress(one("a", 1) + one("b", 2)), 1, grpc_status="0")) == ["body"]
    assert parts(PREDICT, was, grpc(one("a", 1) + one("b", 2), grpc_status="3")) == ["header grpc-status"]
    assert parts(PREDICT, was, was | {"reset": 8}) == ["reset"]


def test_parts_that_vary_in_the_recording_are_named_and_not_compared() -> None:
    recorded = [http(200, b"one"), http(200, b"two")]
    assert differences(LOOKUP, recorded, http(200, b"three")) == ([], ["body"])
    assert differences(LOOKUP, recorded, http(400, b"three"))[0] == [Difference("status", "200", "400")]


def test_an_intended_change_covers_what_it_says_alone() -> None:
    change = Intended(reason="r", form="look*", request="features", parts=["header *"], was="^a", now="^b")
    difference = Difference("header x", "a", "b")
    assert change.covers(LOOKUP, difference)
    assert not change.covers(PREDICT, difference)
    for other in (Difference("status", "a", "b"), Difference("header x", "c", "b"), Difference("header x", "a", "a")):
        assert not change.covers(LOOKUP, other)
    assert not Intended(reason="r", request="instances").covers(LOOKUP, difference)


def test_each_change_needs_a_reason(tmp_path: Path) -> None:
    assert read_intended()
    file = tmp_path / "intended.toml"
    file.write_text('[[change]]\nreason = " "\n')
    with pytest.raises(ValueError, match="each change needs a reason"):
        read_intended(file)
