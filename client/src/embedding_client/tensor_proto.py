"""Decodes TensorProto messages to numpy arrays, and names TensorFlow's dtypes.

Source: tensorflow/core/framework/{tensor,tensor_shape,types}.proto and Tensor::FromProto in tensor.cc (2.21).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from embedding_client.protobuf import (
    Buffer,
    as_bytes,
    as_int,
    fields,
    int_field,
    read_varint,
    repeated_field,
    varint,
    varints,
)
from embedding_client.types import Array

try:
    # ml_dtypes gives numpy a bfloat16 dtype, and comes with TensorFlow. Without it, bfloat16 outputs can not be read.
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

STRING = 7
_BFLOAT16 = 14
# DataType also numbers reference types of variables: the number of the plain type plus this offset.
_REF_OFFSET = 100
# Names of TensorFlow's DataType numbers 1, 2, ...: numpy's name, or the proto's name in lower case if numpy has no such
# dtype.
_NAMES: dict[int, str] = dict(
    enumerate(
        "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 qint16 "
        "quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn float8_e4m3fnuz "
        "float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2 float4_e2m1fn".split(),
        start=1,
    )
)
_PROTO_NAMES = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16"}

# Maps a dtype's number to the number of the TensorProto field that holds its values.
_VALUE_FIELDS: dict[int, int] = {
    **dict.fromkeys((3, 4, 5, 6, 17), 7),
    **{1: 5, 2: 6, 7: 8, 8: 9, 9: 10, 10: 11, 14: 13, 18: 12, 19: 13, 22: 16, 23: 17},
}
# Dtypes whose values have the same bytes in a TensorProto as in an array; values of all other numeric dtypes are
# varints.
_FIXED = frozenset({1, 2, 8, 18})
# Dtypes of 16-bit floats: the message holds the 16 bits of each value as a varint.
_HALVES = frozenset({_BFLOAT16, 19})
_DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(_NAMES[number]) for number in _VALUE_FIELDS if number not in (STRING, _BFLOAT16)
}
if ml_dtypes is not None:
    _DTYPES[_BFLOAT16] = np.dtype(ml_dtypes.bfloat16)
DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}

# A TensorProto may repeat its last value until its shape is full. The client accepts 2**20 elements (4 MiB of float32)
# in such a tensor or, if that is more, one element for each byte of the message.
_MAX_SPREAD_ELEMENTS = 1 << 20
_SMALL_BYTES = 4096
_DTYPE, _SHAPE, _CONTENT, _STRING_VAL = 1, 2, 4, 8


def float_dtype(name: str) -> np.dtype[Any]:
    """Returns the dtype with this name in which a client can ask for float32 outputs.

    Raises:
      ValueError: there is no such dtype, or it needs a package that is not installed.
    """
    if name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"float_dtype is {name!r}: expected float32, float16 or bfloat16")
    dtype = next((dtype for dtype in DTYPE_NUMBERS if dtype.name == name), None)
    if dtype is None:
        raise ValueError("float_dtype is 'bfloat16', which numpy has with the package ml_dtypes only: install it")
    return dtype


def dtype_name(number: int) -> str:
    """Returns the name of a number of TensorFlow's DataType; a reference type has the same name as its plain type.

    >>> dtype_name(1), dtype_name(101), dtype_name(7), dtype_name(0)
    ('float32', 'float32', 'string', 'invalid')
    """
    return _NAMES.get(number - _REF_OFFSET if number > _REF_OFFSET else number, "invalid")


def dtype_of_proto_name(name: str) -> str:
    """Returns the client's dtype name, such as "float32", for the name in JSON metadata, such as "DT_FLOAT".

    >>> dtype_of_proto_name("DT_FLOAT"), dtype_of_proto_name("DT_INT64")
    ('float32', 'int64')
    """
    return _PROTO_NAMES.get(name, name.removeprefix("DT_").lower())


class TensorParts(NamedTuple):
    """A parsed TensorProto, whose values are still bytes.

    number: of its dtype. size: its number of elements. values: the values' bytes by field, if there is no content.
    """

    number: int
    shape: tuple[int, ...]
    size: int
    content: Buffer
    values: dict[int, list[Buffer]]

    def raw(self) -> tuple[np.dtype[Any], Buffer] | None:
        """Returns the dtype and the bytes of the numbers if they lie in the message as in an array; else None."""
        dtype = _DTYPES.get(self.number)
        values = self.values.get(_VALUE_FIELDS[self.number], []) if self.number in _FIXED else []
        chunks = [self.content] if self.content else values
        # In a bool tensor, any byte but 0 is true.
        if dtype is None or dtype.kind == "b" or len(chunks) != 1 or len(chunks[0]) != self.size * dtype.itemsize:
            return None
        return dtype, chunks[0]


def parse_tensor(data: Buffer) -> TensorParts:
    """Parses a TensorProto.

    Raises:
      ValueError: the bytes are no TensorProto, its dtype can not be read, or its shape is larger than its values allow.
    """
    number = 0
    shape_data: Buffer = b""
    content: Buffer = b""
    values: dict[int, list[Buffer]] = {}
    for key, value in fields(data):
        if key == _DTYPE:
            number = as_int(value)
        elif key == _SHAPE:
            shape_data = as_bytes(value)
        elif key == _CONTENT:
            content = as_bytes(value)
        else:
            # A repeated protobuf field may be packed or sent value by value; its joined bytes are the same in both
            # cases.
            values.setdefault(key, []).append(varint(value) if isinstance(value, int) else value)
    if number != STRING and number not in _DTYPES:
        raise ValueError(f"its dtype {dtype_name(number)} can not be read")
    shape, size = _known_shape(bytes(shape_data))
    # Each value that is sent needs at least a byte. So only a tensor whose last value is repeated can have more
    # elements than the message has bytes.
    if size > max(len(data), _MAX_SPREAD_ELEMENTS):
        raise ValueError(f"its shape {list(shape)} has more elements than were sent")
    return TensorParts(number, shape, size, content, values)


def tensor_array(parts: TensorParts) -> Array:
    """Decodes a parsed TensorProto to a writable array; strings become objects (bytes).

    If the values are fewer than the shape's elements, the last value is repeated; without any value the array is zeros,
    as in TensorFlow.

    Raises:
      ValueError: the values do not fit the shape.
    """
    number, shape, size, content, values = parts
    if number == STRING:
        flat = string_array(_split_strings(content, size) if content else values.get(_STRING_VAL, []))
    elif content:
        flat = array_of_bytes(content, _DTYPES[number])
        if flat.size != size:
            raise ValueError(f"its shape {list(shape)} does not fit {len(content)} bytes of content")
    else:
        flat = _numbers(b"".join(values.get(_VALUE_FIELDS[number], ())), number)
    return _spread(flat, size).reshape(shape)


def decode_shape(data: Buffer) -> tuple[int | None, ...] | None:
    """Returns the sizes in a TensorShapeProto {dim = 2 {size = 1}, unknown_rank = 3}.

    None instead of the tuple is an unknown rank; None within the tuple is an unknown size.
    """
    if int_field(data, 3):
        return None
    sizes = [int_field(dim, 1) for dim in repeated_field(data, 2)]
    return tuple(None if size < 0 else size for size in sizes)


@lru_cache(maxsize=1024)
def _known_shape(data: bytes) -> tuple[tuple[int, ...], int]:
    """Decodes a shape and counts its elements. The results are cached, because a server's answers have few shapes."""
    shape = decode_shape(data)
    sizes = tuple(size for size in shape or () if size is not None)
    if shape is None or len(sizes) < len(shape):
        raise ValueError("its shape is unknown")
    return sizes, math.prod(sizes)


def array_bytes(array: Array) -> bytes | memoryview:
    """Returns the numbers of an array in row-major order, without a copy if the array is large."""
    # To make a memoryview takes 1.5 us, to copy a few ids a tenth of that.
    if array.nbytes <= _SMALL_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_of_bytes(content: Buffer, dtype: np.dtype[Any]) -> Array:
    """Returns the numbers of a tensor, which its bytes hold end to end, as a flat, writable array."""
    if dtype.kind == "b":
        # In a bool tensor, any byte but 0 is true.
        truths: Array = np.frombuffer(content, np.uint8) != 0
        return truths
    return np.frombuffer(content, dtype).copy()


def _numbers(data: bytes, number: int) -> Array:
    dtype = _DTYPES[number]
    if number in _FIXED:
        return np.frombuffer(data, dtype).copy()
    integers = varints(data)
    return integers.astype(np.uint16).view(dtype) if number in _HALVES else integers.astype(dtype)


def string_array(items: Sequence[Buffer]) -> Array:
    """Returns a flat array of objects (bytes)."""
    array = np.empty(len(items), object)
    array[:] = [bytes(item) for item in items]
    return array


def _split_strings(content: Buffer, size: int) -> list[Buffer]:
    """Decodes the bytes of TensorFlow's port::EncodeStringList: all lengths as varints, then all strings."""
    position, lengths = 0, []
    for _ in range(size):
        length, position = read_varint(content, position)
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise ValueError("its strings do not fit their lengths")
    strings: list[Buffer] = []
    for length in lengths:
        strings.append(content[position : position + length])
        position += length
    return strings


def _spread(values: Array, size: int) -> Array:
    if values.size == size:
        return values
    if values.size > size:
        raise ValueError(f"it has {values.size} values, its shape has {size}")
    spread = np.empty(size, values.dtype)
    spread[: values.size] = values
    spread[values.size :] = values[-1] if values.size else (b"" if values.dtype == object else 0)
    return spread
