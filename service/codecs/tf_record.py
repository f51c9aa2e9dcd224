"""TFRecord files: records of bytes, each with checksums.

A record is its length (8 bytes), the length's checksum (4), the data, the data's checksum (4), all little-endian. A
checksum is a masked CRC-32C.

Source: tensorflow/core/lib/io/record_reader.h, tensorflow/core/lib/hash/crc32c.h (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO

from service.core.errors import ArtifactError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
# Castagnoli's polynomial, bits reversed.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Read at once at most; a corrupt length that passes its checksum must not ask for all memory.
_MAX_RECORD_BYTES = 2**31 - 1


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """Yields the records of a file.

    Raises:
      ArtifactError: a record is cut off, or is not what its checksum says.
    """
    offset = 0
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise _broken("truncated", offset)
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum or length > _MAX_RECORD_BYTES:
            raise _broken("corrupted", offset)
        data, footer = file.read(length), file.read(_FOOTER.size)
        if len(data) < length or len(footer) < _FOOTER.size:
            raise _broken("truncated", offset)
        if masked_crc32c(data) != _FOOTER.unpack(footer)[0]:
            raise _broken("corrupted", offset)
        yield data
        offset += _HEADER.size + length + _FOOTER.size


def encode_record(data: bytes) -> bytes:
    """Returns one record, as read_records reads it."""
    length = len(data).to_bytes(8, "little")
    header = length + _FOOTER.pack(masked_crc32c(length))
    return b"".join((header, data, _FOOTER.pack(masked_crc32c(data))))


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that a record carries.

    >>> hex(masked_crc32c(b""))
    '0xa282ead8'
    """
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    entries = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        entries.append(crc)
    return tuple(entries)


def _broken(how: str, offset: int) -> ArtifactError:
    return ArtifactError(f"{how} record at {offset}. Please verify your warmup data is in TFRecord format.")
