"""Writes indexes of checkpoints: one anew with other checksums of some tensors, or any records.

Source: tensorflow/core/lib/io/table_builder.cc, format.cc and tensorflow/core/protobuf/tensor_bundle.proto
(TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from service.core.errors import ArtifactError
from service.files.crc32c import crc32c_of
from service.lookup.sorted_table import read_records, read_varint

_MAGIC = 0xDB4775248B80FB57
_MASK_DELTA = 0xA282EAD8
# BundleEntryProto.crc32c: field 6, fixed32.
CHECKSUM_TAG = 6 << 3 | 5
_RESTART_EVERY = 16


def replace_checksums(index: bytes, checksums: Mapping[str, int]) -> bytes:
    """Returns an index; checksums: masked, by the key of a tensor that it holds."""
    records = read_records(index)
    for name, checksum in checksums.items():
        if name.encode() not in records:
            raise ArtifactError(f"the index has no {name!r}")
        records[name.encode()] = _with_checksum(records[name.encode()], checksum)
    return sorted_table(records)


def masked_checksum(crc: int) -> int:
    """Returns a CRC-32C as TensorFlow keeps it: tensorflow/core/lib/hash/crc32c.h (2.21)."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def sorted_table(records: Mapping[bytes, bytes]) -> bytes:
    """Returns an index of records by key, uncompressed."""
    rows = sorted(records.items())
    out = bytearray()
    # One block of all records, which readers take whatever its size.
    data = _append(out, _block(rows))
    meta = _append(out, _block([]))
    index = _append(out, _block([(rows[-1][0], data)]))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def varint(value: int) -> bytes:
    """Returns a number in base 128, the lowest digits first."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def without_fields(message: bytes, tags: Collection[int]) -> bytes:
    """Returns a protobuf message without the fields of these tags (number << 3 | wire type)."""
    kept, position = bytearray(), 0
    while position < len(message):
        begin = position
        tag, position = read_varint(message, position)
        match tag & 7:
            case 0:
                _, position = read_varint(message, position)
            case 2:
                length, position = read_varint(message, position)
                position += length
            case 5:
                position += 4
            case 1:
                position += 8
        if tag not in tags:
            kept += message[begin:position]
    return bytes(kept)


def _with_checksum(entry: bytes, checksum: int) -> bytes:
    return without_fields(entry, {CHECKSUM_TAG}) + bytes([CHECKSUM_TAG]) + struct.pack("<I", checksum)


def _append(out: bytearray, block: bytes) -> bytes:
    handle = varint(len(out)) + varint(len(block))
    # A block is followed by its kind, 0 for "not compressed", and the checksum of both.
    out += block + b"\0" + struct.pack("<I", masked_checksum(crc32c_of(block + b"\0")))
    return handle


def _block(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    # No key shares a prefix with the one before it: an index is small.
    out, restarts = bytearray(), [0]
    for i, (key, value) in enumerate(records):
        if i and i % _RESTART_EVERY == 0:
            restarts.append(len(out))
        out += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    return bytes(out) + b"".join(struct.pack("<I", number) for number in [*restarts, len(restarts)])
