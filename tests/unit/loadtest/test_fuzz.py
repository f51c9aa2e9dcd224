"""Mutations are seeded, bounded and reach deep into requests that can still be read; answers are judged rightly."""

from __future__ import annotations

import copy
import doctest
import gzip
import json
import zlib
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from loadtest import wire
from loadtest.fuzz import mutations
from loadtest.fuzz import wires as verdicts
from loadtest.fuzz.mutations import MAX_BYTES, fields, mutated, mutated_json
from loadtest.wire import message_class, predict_request, varint

REQUEST = message_class("tensorflow.serving.PredictRequest")
SEED = predict_request(REQUEST, "m", "lookup", {"user": [1, 2, 300], "tags": [4]}).SerializeToString()


def test_the_worked_examples_hold() -> None:
    for module in (mutations, wire):
        found = doctest.testmod(module)
        assert found.failed == 0 < found.attempted


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert [mutated(Random(i), [SEED]) for i in range(50)] == [mutated(Random(i), [SEED]) for i in range(50)]


def test_mutations_stay_small_and_survive_anything() -> None:
    data = SEED
    for i in range(2000):
        data = mutated(Random(i), [data, SEED, b""])
        assert len(data) <= MAX_BYTES


def test_many_mutations_change_a_tensor_and_can_still_be_read() -> None:
    original = REQUEST.FromString(SEED)
    changed = 0
    for i in range(1000):
        try:
            message = REQUEST.FromString(mutated(Random(i), [SEED]))
        except DecodeError:
            continue
        same_frame = message.model_spec == original.model_spec and set(message.inputs) == {"user", "tags"}
        changed += same_frame and any(message.inputs[name] != original.inputs[name] for name in ("user", "tags"))
    assert changed > 50


def test_fields_of_a_message_join_to_the_message() -> None:
    found = fields(SEED)
    assert b"".join(SEED[f.start : f.end] for f in found) == SEED
    assert {f.number for f in found} == {1, 2}


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x80" * 20, b"\x0a\x05a", b"\x0b", b"\x0d\x00", b"\x0a" + varint(2**64 - 1)]
)
def test_fields_end_where_a_message_can_not_be_read(data: bytes) -> None:
    assert fields(data) == []


DOCUMENTS: list[Any] = [{"inputs": {"user": [1, 2], "tags": [["red"], []]}, "signature_name": "lookup"}]


def bodies(count: int) -> list[bytes]:
    """Returns mutated bodies, decompressed where they are compressed and can be read."""
    found = []
    for number in range(count):
        body, headers = mutated_json(Random(number), DOCUMENTS)
        if headers == {"Content-Encoding": "gzip"}:
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error):
                continue
        else:
            assert headers == {}
        found.append(body)
    return found


def test_the_same_seed_gives_the_same_bodies_and_the_documents_stay() -> None:
    before = copy.deepcopy(DOCUMENTS)
    assert bodies(300) == bodies(300)
    assert before == DOCUMENTS


def test_about_half_is_json_and_hardly_any_is_the_document_itself() -> None:
    found = bodies(2000)
    parsed = []
    for body in found:
        try:
            parsed.append(json.loads(body))
        except (ValueError, RecursionError):
            continue
    assert 0.3 * len(found) < len(parsed) < 0.9 * len(found)
    assert sum(document == DOCUMENTS[0] for document in parsed) < 0.15 * len(found)


def test_tokens_that_are_no_json_stand_where_values_stand() -> None:
    assert any(b"NaN" in body for body in bodies(1000))
    assert not any(b"token goes here" in body for body in bodies(1000))


JSON = "application/json"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


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
        (200, JSON, b'{"outputs": [1], "more": 2}', True),
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
