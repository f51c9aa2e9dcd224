"""Varints are encoded and decoded as protobuf does it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.artifact.protos import length_prefix, message_class, tag, varint


@given(st.integers(0, 2**63 - 1))
def test_varints_are_protobuf_s(value: int) -> None:
    message = message_class("google.protobuf.Int64Value")(value=value)
    assert tag(1, 0) + varint(value) == (message.SerializeToString() or b"\x08\x00")
    assert length_prefix(b"x" + varint(value), 1) == (value, 1 + len(varint(value)))


def test_a_varint_that_is_cut_off_or_endless_is_none() -> None:
    assert length_prefix(b"\x80", 0)[0] is None
    assert length_prefix(b"\x80" * 20, 0)[0] is None
