"""The client's protobuf code reads and writes the wire format as google.protobuf does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedding_client.protobuf import (
    as_bytes,
    as_int,
    bytes_field,
    field,
    fields,
    int_field,
    map_entry,
    read_varint,
    repeated_field,
    tag,
    varint,
    varints,
)
from service.artifact.protos import message_class

INTEGERS = st.integers(-(2**63), 2**63 - 1)


def tensor(**values: object) -> bytes:
    """Returns the bytes of a TensorProto that protobuf has written."""
    return bytes(message_class("tensorflow.TensorProto")(**values).SerializeToString())


@given(st.lists(INTEGERS))
def test_packed_varints(numbers: list[int]) -> None:
    assert varints(bytes_field(tensor(int64_val=numbers), 10)).tolist() == numbers


@given(st.integers(0, 2**64 - 1))
def test_a_varint(number: int) -> None:
    assert bytes_field(tensor(uint64_val=[number]), 17) == varint(number)
    assert read_varint(b"\xff" + varint(number), 1) == (number, 1 + len(varint(number)))


@given(st.binary(max_size=300), st.lists(st.binary(max_size=20)), st.integers(0, 2**31 - 1))
def test_fields_of_a_message(content: bytes, strings: list[bytes], version: int) -> None:
    data = tensor(tensor_content=content, string_val=strings, version_number=version, float_val=[1.5])
    assert bytes_field(data, 4) == content
    assert repeated_field(data, 8) == strings
    assert int_field(data, 3) == version
    assert bytes_field(data, 5) == b"\0\0\xc0\x3f"


def test_numbers_of_four_and_eight_bytes_are_their_bytes() -> None:
    assert list(fields(tag(5, 5) + b"abcd" + tag(6, 1) + b"abcdefgh")) == [(5, b"abcd"), (6, b"abcdefgh")]


def test_the_last_of_equal_fields_counts() -> None:
    data = tag(1, 0) + varint(1) + tag(1, 0) + varint(2) + field(2, b"a") + field(2, b"b")
    assert (int_field(data, 1), bytes_field(data, 2), repeated_field(data, 2)) == (2, b"b", [b"a", b"b"])


def test_a_map_entry_may_lack_its_parts() -> None:
    assert map_entry(b"") == ("", b"")
    assert map_entry(field(2, b"x") + field(1, "é".encode())) == ("é", b"x")


@given(st.binary(max_size=30))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    try:
        found = list(fields(data))
    except ValueError:
        return
    # Bytes may be fields here and an error to protobuf, which also refuses strings that are no UTF-8, and field 0.
    assert all(number >= 0 for number, _ in found)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80", "varint is cut off"),
        (b"\x08\x80", "varint is cut off"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "varint is too long"),
        (b"\x0a\x05abc", "message is cut off"),
        (b"\x0d\x00\x00", "message is cut off"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(fields(data))


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\xff" * 10 + b"\x01"])
def test_bytes_that_are_no_varints(data: bytes) -> None:
    with pytest.raises(ValueError, match="cut off|too long"):
        varints(data)


def test_a_field_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="holds bytes"):
        as_int(b"x")
    with pytest.raises(ValueError, match="holds a number"):
        as_bytes(1)
