"""Maps TensorFlow's dtypes between DataType numbers, names in protos, and this server's names (numpy's, or "string").

Source: tensorflow/core/framework/types.proto (2.21).
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
