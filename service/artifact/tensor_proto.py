"""Converts TensorProto messages to numpy arrays and back, and TensorFlow's dtypes to numpy's.

A dtype has a DataType number, a name in protos, and this server's name (numpy's, or "string").

Source: tensorflow/core/framework/tensor.proto, types.proto and Tensor::FromProto in tensor.cc (2.21).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from service.artifact.protos import length_prefix, message_class, tag, varint
from service.errors import InputMismatch, MalformedPayload
from service.types import Array

try:
    # numpy gets the dtype bfloat16 from the package ml_dtypes, which is installed with TensorFlow.
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

# DataType number -> this server's dtype name: numpy's name; for a type that numpy lacks, the proto's name in lower
# case.
_NAMES: dict[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
    33: "float4_e2m1fn",
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_PROTO_NAMES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}
# A reference type of TensorFlow 1 (a variable) has the DataType number of its plain type plus 100; only graphs use it.
REF_OFFSET = 100

# DataType number -> numpy dtype of arrays. Strings are not in this dict: they are object arrays of bytes.
NUMPY_DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in _NAMES.items()
    if name in ("bool", "complex64", "complex128", "float16", "float32", "float64")
    or name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
if ml_dtypes is not None:
    NUMPY_DTYPES[14] = np.dtype(ml_dtypes.bfloat16)
NUMBER_OF_DTYPE = {dtype: number for number, dtype in NUMPY_DTYPES.items()}
STRING = 7


def dtype_name(number: int) -> str:
    """Returns this server's dtype name for a DataType number; for a reference type, the name of its plain type.

    >>> dtype_name(1), dtype_name(101), dtype_name(7), dtype_name(0)
    ('float32', 'float32', 'string', 'invalid')
    """
    if number > REF_OFFSET:
        number -= REF_OFFSET
    return _NAMES.get(number, "invalid")


def dtype_number(name: str) -> int:
    """Returns the DataType number of a dtype name; 0 (DT_INVALID) if TensorFlow has no such type.

    >>> dtype_number("float16"), dtype_number("datetime64[s]")
    (19, 0)
    """
    return _NUMBERS.get(name, 0)


def proto_name(name: str) -> str:
    """Returns the name that TensorFlow's protos give a dtype.

    >>> proto_name("float32"), proto_name("int64")
    ('DT_FLOAT', 'DT_INT64')
    """
    return _PROTO_NAMES.get(name, f"DT_{name.upper()}")


# Maximum number of elements, 4 MiB of float32, up to which TensorProto's last value is repeated to fill a tensor's
# shape: a short request must not make the server allocate a huge array.
MAX_SPREAD_ELEMENTS = 1 << 20
# Highest rank of a request's tensor: more dimensions are a mistake or an attack; numpy's limit is 64 too.
MAX_RANK = 64

# DataType number -> name of the TensorProto field that holds values of this type.
_VALUE_FIELDS: dict[int, str] = {
    1: "float_val",
    2: "double_val",
    3: "int_val",
    4: "int_val",
    5: "int_val",
    6: "int_val",
    7: "string_val",
    8: "scomplex_val",
    9: "int64_val",
    10: "bool_val",
    14: "half_val",
    17: "int_val",
    18: "dcomplex_val",
    19: "half_val",
    22: "uint32_val",
    23: "uint64_val",
}
_COMPLEX64, _COMPLEX128, _BOOL = 8, 18, 10
# DataType numbers of float16 and bfloat16, whose bits TensorProto stores in the low half of an integer.
_HALVES = (19, 14)
# DataType numbers whose TensorProto values numpy converts directly from a list, which is faster for few values.
_PLAIN = frozenset({1, 2, 3, 9, 10, 22, 23})
_FEW_VALUES = 64
# DataType number -> number of the packed field whose encoded bytes equal the array's bytes: float_val, double_val,
# scomplex_val, dcomplex_val, bool_val.
_RAW_FIELDS = {1: 5, 2: 6, 8: 9, 18: 12, 10: 11}
_STRING_VAL = 8
_TENSOR_CONTENT = 4


def decode_tensor(name: str, tensor: Any, max_elements: int = MAX_SPREAD_ELEMENTS) -> Array:
    """Converts a TensorProto to an array; strings become an object array of bytes.

    If there are fewer values than the shape needs, the last is repeated; without values all are 0, as in TensorFlow.
    The array may be read-only, since tensor_content is not copied.

    Args:
      max_elements: how many elements the declared shape may have.

    Raises:
      MalformedPayload: shape and values do not fit, or the shape is unknown or too large.
      InputMismatch: the dtype has no numpy arrays here.
    """
    number = tensor.dtype
    if number != STRING and number not in NUMPY_DTYPES:
        _refuse_dtype(name, number)
    shape, size = _shape(name, tensor.tensor_shape, max_elements)
    content = tensor.tensor_content
    if number == STRING:
        flat = _decode_strings(name, tensor, content, size)
    elif content:
        flat = _decode_content(name, content, number, size)
    else:
        flat = _decode_values(name, tensor, number, size)
    return flat if len(shape) == 1 else flat.reshape(shape)


def encode_tensor(name: str, array: Array, *, as_content: bool = False) -> list[Any]:
    """Serializes an array as a TensorProto; returns pieces of bytes that the caller joins.

    Args:
      as_content: True puts the values into tensor_content, False into the `*_val` fields.

    Raises:
      InputMismatch: TensorProto has no such dtype.
    """
    # NUMBER_OF_DTYPE has the dtype object and not its name as key, because reading dtype.name alone costs 3 us.
    number = NUMBER_OF_DTYPE.get(array.dtype)
    if number is None:
        if array.dtype.kind not in "OSU":
            raise InputMismatch(f'output "{name}": dtype {array.dtype.name} has no TensorProto form.')
        number = STRING
    pieces: list[Any] = [tensor_head(number, array.shape)]
    if array.size == 0:
        return pieces
    field = _TENSOR_CONTENT if as_content else _RAW_FIELDS.get(number)
    if number == STRING:
        items = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1).tolist()]
        if as_content:
            return [*pieces, *_joined_strings(items)]
        for data in items:
            pieces += [tag(_STRING_VAL, 2), varint(len(data)), data]
    elif field is not None:
        contiguous = np.ascontiguousarray(array)
        pieces += [tag(field, 2), varint(contiguous.nbytes), contiguous.reshape(-1).view(np.uint8).data]
    else:
        # TensorProto's integer fields hold varints and not the array's bytes; protobuf's extend() encodes the varints
        # in C.
        message = message_class("tensorflow.TensorProto")()
        values = array.view(np.uint16) if number in _HALVES else array
        getattr(message, _VALUE_FIELDS[number]).extend(values.reshape(-1).tolist())
        pieces.append(message.SerializeToString())
    return pieces


def _joined_strings(items: list[bytes]) -> list[bytes]:
    """Encodes strings as port::EncodeStringList does: all lengths as varints, then all bytes."""
    lengths = b"".join(varint(len(item)) for item in items)
    return [tag(_TENSOR_CONTENT, 2), varint(len(lengths) + sum(map(len, items))), lengths, *items]


def _undecodable(name: str) -> MalformedPayload:
    # The error text for an undecodable tensor is TensorFlow Serving's: it names only the input, and not the fault.
    return MalformedPayload(f"tensor parsing error: {name}")


def _refuse_dtype(name: str, number: int) -> None:
    if number not in _NAMES:
        raise _undecodable(name)
    raise InputMismatch(f'input "{name}": dtype {proto_name(dtype_name(number))} is not supported.')


def _shape(name: str, proto: Any, max_elements: int) -> tuple[tuple[int, ...], int]:
    dims = proto.dim
    if proto.unknown_rank or len(dims) > MAX_RANK:
        raise _undecodable(name)
    shape = tuple([dim.size for dim in dims])
    if shape and min(shape) < 0:
        raise _undecodable(name)
    size = math.prod(shape)
    if size > max_elements:
        raise MalformedPayload(
            f"tensor parsing error: {name}: shape {list(shape)} has {size} elements, the limit is {max_elements}."
        )
    # A shape with a size of 0 has no elements, but its other sizes must still fit numpy's index type.
    if size == 0 and math.prod(max(extent, 1) for extent in shape) > np.iinfo(np.int64).max // 16:
        raise _undecodable(name)
    return shape, size


def _decode_content(name: str, content: bytes, number: int, size: int) -> Array:
    dtype = NUMPY_DTYPES[number]
    if len(content) != (wanted := size * dtype.itemsize):
        raise MalformedPayload(
            f"tensor parsing error: {name}: tensor_content has {len(content)} bytes, its shape and dtype take {wanted}."
        )
    if number == _BOOL:
        # Each byte that is not 0 means True. The comparison makes new bools: a bool view of the bytes would keep other
        # values than 0 and 1, which break numpy.
        truths: Array = np.frombuffer(content, np.uint8) != 0
        return truths
    return np.frombuffer(content, dtype)


def _decode_values(name: str, tensor: Any, number: int, size: int) -> Array:
    dtype = NUMPY_DTYPES[number]
    field = getattr(tensor, _VALUE_FIELDS[number])
    if len(field) <= _FEW_VALUES and number in _PLAIN:
        return _spread(name, np.array(field[:], dtype), size)
    # np.array() copies a protobuf repeated field of 100,000 values in 50 us, against 4 ms by way of a list. It takes at
    # least 3 us, also for few values.
    raw = np.array(field)
    if number in (_COMPLEX64, _COMPLEX128):
        if raw.size % 2:
            raise _undecodable(name)
        values = raw.view(dtype)
    elif number in _HALVES:
        values = raw.astype(np.uint16).view(dtype)
    else:
        values = raw.astype(dtype, copy=False)
    return _spread(name, values, size)


def _spread(name: str, values: Array, size: int) -> Array:
    if values.size == size:
        return values
    if values.size > size:
        raise MalformedPayload(f"tensor parsing error: {name}: {values.size} values, its shape has room for {size}.")
    fill = values[-1] if values.size else (b"" if values.dtype == object else 0)
    spread = np.empty(size, values.dtype)
    spread[: values.size] = values
    spread[values.size :] = fill
    return spread


def _decode_strings(name: str, tensor: Any, content: bytes, size: int) -> Array:
    strings = _split_strings(name, content, size) if content else list(tensor.string_val)
    return _spread(name, np.array(strings, object), size)


def _split_strings(name: str, content: bytes, size: int) -> list[bytes]:
    """Decodes strings in a tensor_content that port::EncodeStringList wrote: lengths as varints, then bytes."""
    position, lengths = 0, []
    for _ in range(size):
        length, position = length_prefix(content, position)
        if length is None:
            raise _undecodable(name)
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise _undecodable(name)
    strings = []
    for length in lengths:
        strings.append(content[position : position + length])
        position += length
    return strings


@lru_cache(maxsize=1024)
def tensor_head(number: int, shape: tuple[int, ...]) -> bytes:
    """Serializes dtype and shape of a TensorProto; the bytes are cached, because a server's answers have few shapes."""
    dims = bytearray()
    for size in shape:
        # Each size of the shape is encoded as a message in TensorShapeProto's field dim; the message's field size has
        # the number.
        dim = tag(1, 0) + varint(size)
        dims += tag(2, 2) + varint(len(dim)) + dim
    return tag(1, 0) + varint(number) + tag(2, 2) + varint(len(dims)) + dims
