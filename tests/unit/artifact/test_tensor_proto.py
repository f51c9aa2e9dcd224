"""Encodes and decodes TensorProtos: cases by hand, random ones, and those of TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.artifact.protos import message_class
from service.artifact.tensor_proto import NUMPY_DTYPES, decode_tensor, dtype_number, encode_tensor
from service.errors import InputMismatch, MalformedPayload
from service.types import Array


def proto(dtype: int, shape: tuple[int, ...] = (), content: bytes = b"", **values: list[Any]) -> Any:
    """Builds a TensorProto; `values` are lists by the names of their fields."""
    message = message_class("tensorflow.TensorProto")(dtype=dtype, tensor_content=content, **values)
    message.tensor_shape.SetInParent()
    for size in shape:
        message.tensor_shape.dim.add().size = size
    return message


def encoded(array: Array, *, as_content: bool = False) -> Any:
    """Encodes an array as a TensorProto, and parses the bytes into a message."""
    pieces = encode_tensor("y", array, as_content=as_content)
    return message_class("tensorflow.TensorProto").FromString(b"".join(pieces))


def same(left: Array, right: Array) -> bool:
    """Says whether two arrays agree in dtype, shape and bits; all NaN count as the same."""
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    if left.dtype == "bfloat16":
        # np.array_equal() with equal_nan does not know bfloat16, so its values are compared as float32.
        return right.dtype == "bfloat16" and same(left.astype(np.float32), right.astype(np.float32))
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
# Hypothesis can not draw bfloat16, so such arrays are drawn as uint16 bits.
numeric_arrays = st.sampled_from([dtype for dtype in NUMPY_DTYPES.values()]).flatmap(
    lambda dtype: (
        hnp.arrays(np.uint16, shapes).map(lambda bits: bits.view(dtype))
        if dtype == "bfloat16"
        else hnp.arrays(dtype, shapes)
    )
)


def string_array(strings: list[bytes]) -> Array:
    """Returns a one-dimensional object array of strings; np.array would make another dtype of some lists."""
    result = np.empty(len(strings), object)
    result[:] = strings
    return result


@given(numeric_arrays)
def test_numbers_go_round(array: Array) -> None:
    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    assert same(decode_tensor("y", encoded(array)), array)
    in_content = encoded(array, as_content=True)
    assert in_content.tensor_content == array.tobytes()
    assert same(decode_tensor("y", in_content), array)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_strings_go_round(strings: list[bytes]) -> None:
    array = string_array(strings)
    assert same(decode_tensor("y", encoded(array)), array)
    assert same(decode_tensor("y", encoded(array, as_content=True)), array)


@given(numeric_arrays)
def test_content_holds_the_array_s_own_bytes(array: Array) -> None:
    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    message = proto(dtype_number(array.dtype.name), array.shape, array.tobytes())
    assert same(decode_tensor("x", message), array)


@pytest.mark.parametrize("count", [3, 65, 300])
def test_short_and_long_lists_of_values_give_the_same(count: int) -> None:
    values = list(range(count))
    for dtype, field in ((9, "int64_val"), (3, "int_val"), (1, "float_val"), (23, "uint64_val")):
        array = decode_tensor("x", proto(dtype, (count,), **{field: values}))
        assert array.tolist() == values and array.dtype == NUMPY_DTYPES[dtype]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (proto(1, (3,), float_val=[1.0]), [1.0, 1.0, 1.0]),
        (proto(9, (2, 2), int64_val=[1, 2]), [[1, 2], [2, 2]]),
        (proto(1, (2,)), [0.0, 0.0]),
        (proto(7, (2,)), [b"", b""]),
        (proto(7, (2,), string_val=[b"a"]), [b"a", b"a"]),
        (proto(10, (2,), bool_val=[True]), [True, True]),
        (proto(1, (0,)), []),
        (proto(1, (), float_val=[4.0]), 4.0),
    ],
)
def test_the_last_value_fills_up_and_none_gives_zeros(message: Any, expected: Any) -> None:
    assert decode_tensor("x", message).tolist() == expected


def test_halves_travel_as_bits() -> None:
    assert decode_tensor("x", proto(14, (2,), half_val=[0x3F80, 0xC000])).astype(float).tolist() == [1.0, -2.0]
    assert decode_tensor("x", proto(19, (2,), half_val=[0x3C00, 0xC000])).tolist() == [1.0, -2.0]


def test_any_byte_but_zero_is_true() -> None:
    assert decode_tensor("x", proto(10, (3,), b"\x00\x01\x02")).tolist() == [False, True, True]


def test_string_content_is_lengths_then_bytes() -> None:
    long = b"b" * 200
    content = b"\x01\xc8\x01\x00" + b"a" + long
    assert decode_tensor("x", proto(7, (3,), content)).tolist() == [b"a", long, b""]


@pytest.mark.parametrize(
    "message",
    [
        proto(1, (2,), b"\0" * 7),
        proto(1, (-1,)),
        proto(1, (2, -3), float_val=[1]),
        proto(1, (0, 2**62, 2**62)),
        proto(1, (1,) * 65),
        proto(8, (1,), scomplex_val=[1.0, 2.0, 3.0]),
        proto(7, (2,), b"\x01"),
        proto(7, (1,), b"\x05ab"),
        proto(7, (1,), b"\xff" * 12),
        proto(0, (1,), float_val=[1]),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused_as_tensorflow_serving_does(message: Any) -> None:
    with pytest.raises(MalformedPayload, match="^tensor parsing error: x$"):
        decode_tensor("x", message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (proto(1, (2,), float_val=[1, 2, 3]), "3 values, its shape has room for 2"),
        (proto(7, (1,), string_val=[b"a", b"b"]), "2 values, its shape has room for 1"),
        (proto(1, (10**9,), float_val=[1]), "1000000000 elements, the limit is"),
        (proto(1, (2**62, 4)), "elements, the limit is"),
    ],
)
def test_what_only_this_server_refuses_is_explained(message: Any, problem: str) -> None:
    with pytest.raises(MalformedPayload, match=f"^tensor parsing error: x: .*{problem}"):
        decode_tensor("x", message)


def test_an_unknown_rank_is_refused() -> None:
    message = proto(1, float_val=[1])
    message.tensor_shape.unknown_rank = True
    with pytest.raises(MalformedPayload, match="^tensor parsing error: x$"):
        decode_tensor("x", message)


@pytest.mark.parametrize(("dtype", "name"), [(11, "DT_QINT8"), (20, "DT_RESOURCE")])
def test_a_dtype_without_arrays_is_refused_by_name(dtype: int, name: str) -> None:
    with pytest.raises(InputMismatch, match=f'input "x": dtype {name} is not supported'):
        decode_tensor("x", proto(dtype, (1,)))


def test_an_output_without_a_dtype_is_refused() -> None:
    with pytest.raises(InputMismatch, match="datetime64"):
        encode_tensor("y", np.zeros(1, "datetime64[s]"))


def test_arrays_that_are_not_contiguous_are_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert decode_tensor("y", encoded(array)).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.tf
@settings(deadline=None)
@given(numeric_arrays)
def test_tensorflow_reads_what_we_write(array: Array) -> None:
    import tensorflow as tf
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    theirs = TensorProto.FromString(b"".join(encode_tensor("y", array)))
    assert same(tf.make_ndarray(theirs), array)
    # TensorFlow's C++ parser, which servers use, reads the same array, but for scalars, which it may read otherwise.
    assert (
        same(tf.io.parse_tensor(theirs.SerializeToString(), tf.as_dtype(array.dtype)).numpy(), array) or not array.ndim
    )


@pytest.mark.tf
@given(numeric_arrays)
def test_we_read_what_tensorflow_writes(array: Array) -> None:
    import tensorflow as tf

    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    ours = message_class("tensorflow.TensorProto")
    assert same(decode_tensor("x", ours.FromString(tf.make_tensor_proto(array).SerializeToString())), array)
    serialized = tf.io.serialize_tensor(tf.constant(array)).numpy()
    assert same(decode_tensor("x", ours.FromString(serialized)), array)


@pytest.mark.tf
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_we_read_strings_that_tensorflow_writes(strings: list[bytes]) -> None:
    import tensorflow as tf

    ours = message_class("tensorflow.TensorProto")
    array = string_array(strings)
    assert same(decode_tensor("x", ours.FromString(tf.make_tensor_proto(strings).SerializeToString())), array)
    assert same(decode_tensor("x", ours.FromString(tf.io.serialize_tensor(strings).numpy())), array)


@pytest.mark.tf
def test_tensorflow_fills_up_as_we_do() -> None:
    import tensorflow as tf

    for message in (proto(1, (3,), float_val=[1.0]), proto(9, (2, 2), int64_val=[1, 2]), proto(1, (2,))):
        theirs = tf.io.parse_tensor(message.SerializeToString(), tf.as_dtype(message.dtype)).numpy()
        assert same(decode_tensor("x", message), theirs)
