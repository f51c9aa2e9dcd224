"""Mutations of bytes are seeded, bounded, and reach deep into messages that can still be read."""

from __future__ import annotations

import doctest
from random import Random

import pytest
from google.protobuf.message import DecodeError

from loadtest import wire
from loadtest.fuzz import mutations
from loadtest.fuzz.mutations import MAX_BYTES, fields, mutated
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
