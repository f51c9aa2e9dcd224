"""The client's protobuf code reads and writes messages and tensors as google.protobuf and the server do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
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
from embedding_client.tensor_proto import (
    DTYPE_NUMBERS,
    decode_shape,
    dtype_name,
    dtype_of_proto_name,
    parse_tensor,
    tensor_array,
)
from service.artifact import tensor_proto
from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor

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


DTYPES = sorted(DTYPE_NUMBERS, key=str)


def decode_tensor(data: bytes) -> np.ndarray:
    """Decodes a TensorProto."""
    return tensor_array(parse_tensor(data))


def array_of(dtype: np.dtype[Any], *shape: int) -> np.ndarray:
    """Returns numbers of a dtype over its whole range; of bfloat16 and the like normal ones."""
    rng = np.random.default_rng(5)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.normal(size=shape).round().astype(dtype)


def proto(**values: Any) -> bytes:
    """Returns the bytes of a TensorProto, with two elements unless `shape` says otherwise."""
    shape = values.pop("shape", [2])
    message = message_class("tensorflow.TensorProto")(**values)
    message.tensor_shape.SetInParent()
    for size in shape:
        message.tensor_shape.dim.add().size = size
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_that_the_server_encodes(dtype: np.dtype[Any]) -> None:
    for shape, as_content in itertools.product([(), (0,), (3,), (2, 0, 3), (100, 2)], [False, True]):
        array = array_of(dtype, *shape)
        decoded = decode_tensor(b"".join(encode_tensor("x", array, as_content=as_content)))
        np.testing.assert_array_equal(decoded, array, strict=True)
        assert decoded.flags.writeable


@pytest.mark.parametrize("as_content", [False, True], ids=["values", "content"])
@given(strings=st.lists(st.binary(max_size=200), max_size=20))
def test_strings(strings: list[bytes], as_content: bool) -> None:
    array = np.empty(len(strings), object)
    array[:] = strings
    decoded = decode_tensor(b"".join(encode_tensor("x", array, as_content=as_content)))
    assert (decoded.dtype, decoded.tolist()) == (np.dtype(object), strings)


def test_dtypes_have_the_servers_names() -> None:
    assert DTYPE_NUMBERS == tensor_proto.NUMBER_OF_DTYPE
    for number in range(140):
        name = tensor_proto.dtype_name(number)
        assert dtype_name(number) == name
        assert dtype_of_proto_name(tensor_proto.proto_name(name)) == name


def test_values_may_come_one_by_one() -> None:
    head = tag(1, 0) + varint(9) + field(2, field(2, tag(1, 0) + varint(3)))
    assert decode_tensor(head + tag(10, 0) + varint(300) + field(10, b"\x05\x06")).tolist() == [300, 5, 6]
    head = tag(1, 0) + varint(1) + field(2, field(2, tag(1, 0) + varint(2)))
    assert decode_tensor(head + (tag(5, 5) + b"\0\0\x80\x3f") * 2).tolist() == [1, 1]


def test_few_values_are_spread_as_in_tensorflow() -> None:
    assert decode_tensor(proto(dtype=1, float_val=[1, 2], shape=[2, 2])).tolist() == [[1, 2], [2, 2]]
    assert decode_tensor(proto(dtype=3, shape=[2])).tolist() == [0, 0]
    assert decode_tensor(proto(dtype=7, string_val=[b"a"], shape=[2])).tolist() == [b"a", b"a"]
    assert decode_tensor(proto(dtype=7, shape=[1])).tolist() == [b""]


def test_shapes() -> None:
    assert decode_shape(b"") == ()
    assert decode_shape(field(2, tag(1, 0) + varint(2**64 - 1)) + field(2, b"")) == (None, 0)
    assert decode_shape(tag(3, 0) + varint(1)) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (proto(shape=[]), "dtype invalid"),
        (proto(dtype=11), "dtype qint8"),
        (proto(dtype=1, shape=[-1]), "shape is unknown"),
        (proto(dtype=1, shape=[1 << 40]), "more elements"),
        (proto(dtype=1, float_val=[1, 2, 3]), "3 values"),
        (proto(dtype=1, tensor_content=b"abcd"), "does not fit 4 bytes"),
        (proto(dtype=1, tensor_content=b"abc"), "multiple of element size"),
        (proto(dtype=7, tensor_content=b"\x01\x05ab"), "do not fit their lengths"),
        (proto(dtype=7, tensor_content=b"\x01"), "varint is cut off"),
        (b"\x0a\x00", "a number holds bytes"),
        (b"\x10\x01", "bytes holds a number"),
    ],
)
def test_bytes_that_are_no_tensor(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode_tensor(data)
