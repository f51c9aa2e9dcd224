"""Reads and writes TFRecord files: sequences of byte strings, each with checksums.

A record is its length (8 bytes), the length's checksum (4), the data, the data's checksum (4), all little-endian. A
checksum is a masked CRC-32C.

Source: tensorflow/core/lib/io/record_reader.h, tensorflow/core/lib/hash/crc32c.h (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from service.errors import ArtifactError

# Path, within a version's folder, of the file with recorded requests that the server replays before it serves the
# version.
WARMUP_PATH = "assets.extra/tf_serving_warmup_requests"
# Maximum number of records in a warm-up file; TensorFlow Serving refuses to load a version with more.
MAX_WARMUP_RECORDS = 1000

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
# Type of a function that returns the masked CRC-32C of bytes; artifact.hashes has one.
Checksum = Callable[[bytes], int]
# Largest record of a TFRecord file that is read, in bytes: a wrong length with a valid checksum must not make the
# server allocate all memory.
_MAX_RECORD_BYTES = 2**31 - 1


def read_records(file: BinaryIO, checksum: Checksum) -> Iterator[bytes]:
    """Yields the records (byte strings) of a TFRecord file, after checks of their checksums.

    Raises:
      ArtifactError: a record is cut off, or does not match its checksum.
    """
    offset = 0
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise _broken("truncated", offset)
        length, expected = _HEADER.unpack(header)
        if checksum(header[:8]) != expected or length > _MAX_RECORD_BYTES:
            raise _broken("corrupted", offset)
        data, footer = file.read(length), file.read(_FOOTER.size)
        if len(data) < length or len(footer) < _FOOTER.size:
            raise _broken("truncated", offset)
        if checksum(data) != _FOOTER.unpack(footer)[0]:
            raise _broken("corrupted", offset)
        yield data
        offset += _HEADER.size + length + _FOOTER.size


def encode_record(data: bytes, checksum: Checksum) -> bytes:
    length = len(data).to_bytes(8, "little")
    header = length + _FOOTER.pack(checksum(length))
    return b"".join((header, data, _FOOTER.pack(checksum(data))))


def _broken(how: str, offset: int) -> ArtifactError:
    return ArtifactError(f"{how} record at {offset}. Please verify your warmup data is in TFRecord format.")
