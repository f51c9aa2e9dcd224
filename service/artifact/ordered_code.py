"""Encodes the keys of a variable's slices in a checkpoint's index; the byte strings sort in the order of the slices.

>>> slice_key("t", ((0, 2), (0, -1)))
b'\\x00t\\x00\\x01\\x01\\x02\\x80\\x82\\x80\\x7f'

Source: EncodeTensorNameSlice of tensorflow/core/util/saved_tensor_slice_util.cc and
tensorflow/core/lib/strings/ordered_code.cc (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Sequence

# Header bits in the first byte of an encoded number, by its size: a number of n bytes starts with n ones and a zero.
_HEADERS = (0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF)


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    """Returns the key of one slice of a variable in a checkpoint's index.

    Args:
      extents: (start, length) by dimension; length -1 is the whole dimension.

    Raises:
      ValueError: a start or length is 2**55 or more.
    """
    # TensorFlow's EncodeTensorNameSlice escapes 0xff too; here this is not needed, because UTF-8 text never contains
    # 0xff.
    escaped = name.encode().replace(b"\0", b"\0\xff")
    numbers = b"".join(_signed(start) + _signed(length) for start, length in extents)
    return _unsigned(0) + escaped + b"\0\1" + _unsigned(len(extents)) + numbers


def _unsigned(value: int) -> bytes:
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _signed(value: int) -> bytes:
    # TensorFlow's ordered code encodes a signed number in n bytes as n header bits, one sign bit and 7 n - 1 bits of
    # the number.
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    if size > len(_HEADERS):
        raise ValueError(f"a slice has the number {value}")
    digits = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    return bytes([digits[0] ^ _HEADERS[size - 1]]) + digits[1:]
