"""Converts datatypes, shapes and binary tensor data of the Open Inference Protocol, for HTTP and gRPC.

Binary data is little-endian, row by row, without padding; an element of BYTES is its length in four bytes, then its
bytes:

>>> split_bytes("x", b"\\x02\\0\\0\\0hi\\0\\0\\0\\0", 2).tolist()
[b'hi', b'']

Source: kserve/open-inference-protocol, specification/protocol/inference_grpc.md "Tensor Data Types" (29ca333);
triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.artifact import dtypes
from service.errors import InputMismatch, MalformedPayload
from service.types import Array

try:
    # The package ml_dtypes gives numpy the dtype bfloat16. It is installed with TensorFlow, and only graphs use
    # bfloat16 arrays.
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

# Type of the binary data of a tensor in a request; a memoryview avoids a copy.
Buffer = bytes | memoryview

BYTES = "BYTES"
BF16 = "BF16"
_BOOL = "BOOL"
# Highest rank of a request's tensor: more dimensions are a mistake or an attack; numpy's limit is 64 too.
_MAX_RANK = 64
_LENGTH = struct.Struct("<I")

# Dtype name of this server -> datatype of the Open Inference Protocol.
_DATATYPES: Mapping[str, str] = {
    "bool": _BOOL,
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "bfloat16": BF16,
    "float32": "FP32",
    "float64": "FP64",
    "string": BYTES,
}
# Datatype of the Open Inference Protocol -> numpy dtype of arrays.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    datatype: np.dtype(object if name == "string" else name)
    for name, datatype in _DATATYPES.items()
    if name != "bfloat16"
}
if ml_dtypes is not None:
    NUMPY_DTYPES[BF16] = np.dtype(ml_dtypes.bfloat16)
_DATATYPE_OF_DTYPE = {dtype: datatype for datatype, dtype in NUMPY_DTYPES.items() if datatype != BYTES}


def datatype_name(dtype: str) -> str:
    """Returns the Open Inference Protocol's datatype for a dtype name, or TensorFlow's name if the protocol has none.

    >>> datatype_name("float32"), datatype_name("string"), datatype_name("complex64")
    ('FP32', 'BYTES', 'DT_COMPLEX64')
    """
    return _DATATYPES.get(dtype) or dtypes.proto_name(dtype)


def numpy_dtype(name: str, datatype: str) -> np.dtype[Any]:
    """Returns the numpy dtype of an input's datatype.

    Raises MalformedPayload, or InputMismatch for BF16.
    """
    dtype = NUMPY_DTYPES.get(datatype)
    if dtype is not None:
        return dtype
    if datatype == BF16:
        raise InputMismatch(f'input "{name}": datatype BF16 needs TensorFlow, and this server runs without it.')
    known = ", ".join(sorted(_DATATYPES.values()))
    raise MalformedPayload(f'input "{name}": unknown datatype "{datatype}". Datatypes: {known}.')


def checked_shape(name: str, sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Checks a tensor's shape; returns it as a tuple, and its number of elements. Raises MalformedPayload."""
    shape = tuple(sizes)
    if len(shape) > _MAX_RANK:
        raise MalformedPayload(f'input "{name}": its shape has {len(shape)} dimensions, the limit is {_MAX_RANK}.')
    if shape and min(shape) < 0:
        raise MalformedPayload(f'input "{name}": its shape {list(shape)} has a negative size.')
    # Sizes of 0 count as 1 here: a shape with a 0 has no elements, but its other sizes must still fit numpy's index
    # type.
    if math.prod(max(size, 1) for size in shape) > np.iinfo(np.int64).max // 16:
        raise MalformedPayload(f'input "{name}": its shape {list(shape)} is too large.')
    return shape, math.prod(shape)


def reshaped(name: str, flat: Array, shape: tuple[int, ...], size: int) -> Array:
    """Returns the values of a tensor in its shape; raises MalformedPayload if their number does not fit the shape."""
    if flat.size != size:
        raise MalformedPayload(f'input "{name}": {flat.size} values, its shape {list(shape)} needs {size}.')
    return flat if len(shape) == 1 and flat.ndim == 1 else flat.reshape(shape)


def decode_binary(name: str, datatype: str, sizes: Sequence[int], data: Buffer) -> Array:
    """Converts the binary data of an Open Inference Protocol input to an array, without a copy if possible.

    Args:
      name: the input's name, for error texts.

    Raises:
      MalformedPayload: datatype, shape and data do not fit.
      InputMismatch: the datatype is BF16, and ml_dtypes is missing.
    """
    dtype = numpy_dtype(name, datatype)
    shape, size = checked_shape(name, sizes)
    if datatype == BYTES:
        return reshaped(name, split_bytes(name, data, size), shape, size)
    if len(data) != size * dtype.itemsize:
        raise MalformedPayload(
            f'input "{name}": {len(data)} bytes of data, {datatype} of shape {list(shape)} needs '
            f"{size * dtype.itemsize}."
        )
    if datatype == _BOOL:
        # The bytes of a BOOL tensor are compared with 0, because any byte but 0 means true. A numpy bool view would
        # keep bytes above 1, which break numpy.
        flat: Array = np.frombuffer(data, np.uint8) != 0
    else:
        flat = np.frombuffer(data, dtype)
    if not flat.flags.aligned:
        # Unaligned data are copied: behind a JSON header data begin at any address, and kernels and graphs need aligned
        # numbers.
        flat = flat.copy()
    return reshaped(name, flat, shape, size)


def split_bytes(name: str, data: Buffer, size: int) -> Array:
    """Splits binary data of datatype BYTES into an object array of `size` strings; raises MalformedPayload."""
    if size * _LENGTH.size > len(data):
        raise MalformedPayload(
            f'input "{name}": {len(data)} bytes of data are too few for {size} elements of BYTES, each of them '
            "after its length in 4 bytes."
        )
    result = np.empty(size, object)
    position = 0
    for i in range(size):
        start = position + _LENGTH.size
        position = start + _LENGTH.unpack_from(data, position)[0] if start <= len(data) else start
        if position > len(data):
            raise MalformedPayload(f'input "{name}": element {i} of BYTES ends beyond its {len(data)} bytes of data.')
        result[i] = bytes(data[start:position])
    if position != len(data):
        raise MalformedPayload(f'input "{name}": {len(data) - position} bytes of data are left after the last element.')
    return result


def datatype_of(name: str, array: Array) -> str:
    """Returns an output's datatype in the Open Inference Protocol; raises InputMismatch if its dtype has none there."""
    datatype = _DATATYPE_OF_DTYPE.get(array.dtype)
    if datatype is not None:
        return datatype
    if array.dtype.kind in "OSU":
        return BYTES
    raise InputMismatch(
        f'output "{name}": {array.dtype.name} has no datatype in this protocol; ask for the other outputs only, or use '
        "TensorFlow Serving's gRPC API."
    )


def encode_binary(array: Array) -> tuple[list[Any], int]:
    """Returns an output's binary data as pieces, without copying numbers, and their total size in bytes."""
    if array.dtype.kind not in "OSU":
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return [data], data.nbytes
    pieces: list[Any] = []
    for item in array.reshape(-1).tolist():
        element = item.encode() if isinstance(item, str) else item
        pieces += [_LENGTH.pack(len(element)), element]
    return pieces, sum(map(len, pieces))
