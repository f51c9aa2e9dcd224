"""Answers in JSON and protobuf become arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedding_client.errors import EmbeddingError
from embedding_client.http_answers import checked
from embedding_client.json_answers import float32_array, typed_array
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
from embedding_client.tensor_proto import DTYPE_NUMBERS, decode_shape, decode_tensor, dtype_name, dtype_of_proto_name
from embedding_client.types import TensorDescription
from service.artifact import tensor_proto
from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor
from service.errors import ArtifactError, ServiceError
from service.http.errors import HTTP_STATUS, service_error_response

# (bits of a float32, bits of the float32 to which its decimal form leads if it is first rounded to a float64).
ROUNDED_TWICE = [(363742205, 363742206)]


def written(array: np.ndarray) -> bytes:
    """Returns an array's JSON as the server writes it."""
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(("bits", "wrong_bits"), ROUNDED_TWICE)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_beside_the_middle_of_two_floats_is_rounded_once(bits: int, wrong_bits: int, sign: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32) * np.float32(sign)
    document = orjson.loads(written(value))
    assert np.array(document, np.float32).view(np.uint32)[0] & 0x7FFFFFFF == wrong_bits, "numpy alone is wrong here"
    assert float32_array(document).tobytes() == value.tobytes()


@pytest.mark.parametrize("exponent_bits", range(0, 255, 2))
def test_every_float32_comes_back(exponent_bits: int) -> None:
    fractions = np.random.default_rng(exponent_bits).integers(0, 1 << 23, 500, np.uint32)
    values = (fractions | np.uint32(exponent_bits << 23)).view(np.float32)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


def test_the_edges_come_back() -> None:
    info = np.finfo(np.float32)
    edges = [0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 1 + info.eps]
    values = np.array(edges, np.float32).reshape(2, 4)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(16777217, 16777216), (16777219, 16777220), (1e39, np.inf), (-1e39, -np.inf), (1e-46, 0), (7e-46, 0)],
)
def test_ties_go_to_the_even_and_what_is_too_large_is_infinite(value: float, expected: float) -> None:
    # 7e-46 is just below the middle between 0 and the smallest float32, so it rounds to 0.
    assert float32_array([value])[0] == expected


def test_shapes_and_tokens() -> None:
    array = float32_array([[1, float("nan")], [float("-inf"), 2.5]])
    np.testing.assert_array_equal(array, np.array([[1, np.nan], [-np.inf, 2.5]], np.float32), strict=True)
    assert float32_array(0.1).shape == ()
    assert float32_array(7.038531e-26).shape == ()


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int64", [9007199254740993], np.array([9007199254740993])),
        ("uint8", [255], np.array([255], np.uint8)),
        ("float64", [0.1], np.array([0.1])),
        ("float16", [0.1], np.array([0.1], np.float16)),
        ("bool", [True, False], np.array([True, False])),
        ("float32", 1.5, np.float32(1.5)),
        ("string", [["é"], [{"b64": "AP8="}]], np.array([["é".encode()], [b"\0\xff"]], object)),
        ("string", {"b64": "AP8="}, np.array(b"\0\xff", object)),
    ],
)
def test_dtypes_are_the_signatures(dtype: str, value: Any, expected: Any) -> None:
    array = typed_array(value, TensorDescription(dtype, None))
    np.testing.assert_array_equal(array, np.asarray(expected), strict=True)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [([], (None, 8), (0, 8)), ([[], []], (None, 0, 3), (2, 0, 3)), ([], None, (0,)), ([], (None, None), (0, 0))],
)
def test_an_empty_list_has_the_signatures_shape(
    value: Any, shape: tuple[int | None, ...] | None, expected: tuple[int, ...]
) -> None:
    assert typed_array(value, TensorDescription("float32", shape)).shape == expected


# An ArtifactError becomes the state of a version, and is never the answer to a request.
SENT = [cls for cls in HTTP_STATUS if cls is not ArtifactError]


@pytest.mark.parametrize("cls", SENT, ids=lambda cls: cls.__name__)
def test_every_error_of_the_server_has_grpcs_code_again(cls: type[ServiceError]) -> None:
    response = service_error_response(cls("text"), "id")
    with pytest.raises(EmbeddingError) as caught:
        checked(response.status_code, bytes(response.body), response.headers.get)
    assert caught.value.code == cls.code
    assert caught.value.retry_after_s == (1 if cls.__name__ == "Overloaded" else None)


def test_tensorflow_serving_has_no_header_that_tells_a_missing_signature_from_other_faults() -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(400, b'{"error": "Serving signature name: \\"x\\" not found in signature def"}', {}.get)
    assert caught.value.code == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (405, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED")]
    + [(499, "CANCELLED"), (501, "UNIMPLEMENTED"), (502, "UNAVAILABLE"), (302, "UNKNOWN"), (507, "UNKNOWN")],
)
def test_what_lies_between_has_codes_too(status: int, code: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(status, b"<html>a page</html>", {}.get)
    assert (caught.value.code, caught.value.message) == (code, "<html>a page</html>")


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"", "HTTP status 503 without an error text."), (b'{"error": 5}', '{"error": 5}'), (b"[]", "[]"), (b"\xff", "�")],
)
def test_any_body_makes_a_text(body: bytes, text: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, body, {}.get)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("-1", None), ("", None)]
)
def test_retry_after_is_seconds(header: str | None, seconds: float | None) -> None:
    with pytest.raises(EmbeddingError) as caught:
        checked(503, b"", {"Retry-After": header}.get)
    assert caught.value.retry_after_s == seconds


def test_a_good_answer_is_its_body() -> None:
    assert checked(200, b"x", {}.get) == (b"x", None)


@pytest.mark.parametrize(("header", "version"), [("3", 3), ("0", 0), (None, None), ("x", None), ("-1", None)])
def test_a_header_names_the_version(header: str | None, version: int | None) -> None:
    assert checked(200, b"", {"X-Model-Version": header}.get).version == version


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
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (100, 2)], ids=str)
@pytest.mark.parametrize("as_content", [False, True], ids=["values", "content"])
def test_every_dtype_that_the_server_encodes(dtype: np.dtype[Any], shape: tuple[int, ...], as_content: bool) -> None:
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
