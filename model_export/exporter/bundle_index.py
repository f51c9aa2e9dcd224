"""Writes the index of a checkpoint: a new one, or one with other checksums of some tensors.

Source: tensorflow/core/lib/io/table_builder.cc, format.cc and tensorflow/core/protobuf/tensor_bundle.proto
(TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from service.core.errors import ArtifactError
from service.files.crc32c import crc32c_of
from service.lookup.bundle import DTYPES, BundleEntry
from service.lookup.sorted_table import read_records, read_varint

_MAGIC = 0xDB4775248B80FB57
_MASK_DELTA = 0xA282EAD8
# BundleEntryProto.crc32c: field 6, fixed32.
_CHECKSUM_TAG = 6 << 3 | 5
_RESTART_EVERY = 16


def new_index(tensors: Mapping[str, BundleEntry]) -> bytes:
    """Returns the index of a checkpoint of one data shard, which holds the tensors where their entries say."""
    # BundleHeaderProto: num_shards 1, endianness little (the default), version.producer 1.
    header = bytes([1 << 3, 1, 3 << 3 | 2, 2, 1 << 3, 1])
    return _sorted_table(
        sorted([(b"", header), *((name.encode(), _entry_proto(entry)) for name, entry in tensors.items())])
    )


def _entry_proto(entry: BundleEntry) -> bytes:
    number = next(number for number, name in DTYPES.items() if name == entry.dtype)
    # TensorShapeProto: repeated dim = 2, each with size = 1.
    dims = [b"\x08" + _varint(size) for size in entry.shape]
    shape = b"".join(b"\x12" + _varint(len(dim)) + dim for dim in dims)
    return (
        b"\x08"
        + _varint(number)
        + b"\x12"
        + _varint(len(shape))
        + shape
        # shard_id 0 is the default.
        + b"\x20"
        + _varint(entry.offset)
        + b"\x28"
        + _varint(entry.nbytes)
        + bytes([_CHECKSUM_TAG])
        + struct.pack("<I", entry.crc32c)
    )


def replace_checksums(index: bytes, checksums: Mapping[str, int]) -> bytes:
    """Returns an index; checksums: masked, by the key of a tensor that it holds."""
    records = read_records(index)
    for name, checksum in checksums.items():
        if name.encode() not in records:
            raise ArtifactError(f"the index has no {name!r}")
        records[name.encode()] = _with_checksum(records[name.encode()], checksum)
    return _sorted_table(sorted(records.items()))


def _with_checksum(entry: bytes, checksum: int) -> bytes:
    kept, position = bytearray(), 0
    while position < len(entry):
        begin = position
        tag, position = read_varint(entry, position)
        match tag & 7:
            case 0:
                _, position = read_varint(entry, position)
            case 2:
                length, position = read_varint(entry, position)
                position += length
            case 5:
                position += 4
            case 1:
                position += 8
        if tag != _CHECKSUM_TAG:
            kept += entry[begin:position]
    return bytes(kept) + bytes([_CHECKSUM_TAG]) + struct.pack("<I", checksum)


def _sorted_table(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    out = bytearray()
    # One block of all records, which readers take whatever its size.
    data = _append(out, _block(records))
    meta = _append(out, _block([]))
    index = _append(out, _block([(records[-1][0], data)]))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _append(out: bytearray, block: bytes) -> bytes:
    handle = _varint(len(out)) + _varint(len(block))
    # A block is followed by its kind, 0 for "not compressed", and the checksum of both.
    crc = crc32c_of(block + b"\0")
    out += block + b"\0" + struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)
    return handle


def _block(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    # No key shares a prefix with the one before it: an index is small.
    out, restarts = bytearray(), [0]
    for i, (key, value) in enumerate(records):
        if i and i % _RESTART_EVERY == 0:
            restarts.append(len(out))
        out += _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
    return bytes(out) + b"".join(struct.pack("<I", number) for number in [*restarts, len(restarts)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])
