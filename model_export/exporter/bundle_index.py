"""Writes a checkpoint's index file: makes records of tensors, joins records to an index, and replaces checksums.

Source: tensorflow/core/lib/io/table_builder.cc, format.cc and tensorflow/core/protobuf/tensor_bundle.proto
(TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from service.artifact.bundle import DTYPES, BundleEntry
from service.artifact.crc32c import masked_of
from service.artifact.sorted_table import read_records, read_varint
from service.errors import ArtifactError

_MAGIC = 0xDB4775248B80FB57
_RESTART_EVERY = 16
# Tags of protobuf fields: field number << 3 | wire type (0 varint, 2 message, 5 fixed32). First the fields of
# BundleHeaderProto:
_NUM_SHARDS, _VERSION = 1 << 3, 3 << 3 | 2
# BundleEntryProto:
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM = 1 << 3, 2 << 3 | 2, 3 << 3, 4 << 3, 5 << 3, 6 << 3 | 5
# Fields of TensorShapeProto (dim), of TensorShapeProto.Dim (size), and of VersionDef (producer):
_DIM, _DIM_SIZE, _PRODUCER = 2 << 3 | 2, 1 << 3, 1 << 3


def new_header() -> bytes:
    return _field(_NUM_SHARDS, 1) + _message(_VERSION, _field(_PRODUCER, 1))


def header_of_one_shard(header: bytes) -> bytes:
    """Returns a copy of a checkpoint's header record that says that there is one data shard."""
    return _field(_NUM_SHARDS, 1) + _without_fields(header, {_NUM_SHARDS})


def new_record(entry: BundleEntry) -> bytes:
    """Makes the index record of a whole tensor, whose bytes lie in the checkpoint's only data shard."""
    number = next(number for number, name in DTYPES.items() if name == entry.dtype)
    dims = b"".join(_message(_DIM, _field(_DIM_SIZE, size)) for size in entry.shape)
    return (
        _field(_DTYPE, number)
        + _message(_SHAPE, dims)
        + _field(_OFFSET, entry.offset)
        + _field(_SIZE, entry.nbytes)
        + _checksum_field(entry.crc32c)
    )


def moved_record(record: bytes, offset: int) -> bytes:
    """Returns a copy of a tensor's index record for another offset of its bytes, in the only data shard."""
    return _without_fields(record, {_SHARD, _OFFSET}) + _field(_OFFSET, offset)


def replace_checksums(index: bytes, checksums: Mapping[str, int]) -> bytes:
    """Returns a copy of a checkpoint's index with new masked CRC32C checksums, which are given by the tensor's key."""
    records = read_records(index)
    for name, checksum in checksums.items():
        if name.encode() not in records:
            raise ArtifactError(f"the index has no {name!r}")
        kept = _without_fields(records[name.encode()], {_CHECKSUM})
        records[name.encode()] = kept + _checksum_field(checksum)
    return new_index(records)


def new_index(records: Mapping[bytes, bytes]) -> bytes:
    rows = sorted(records.items())
    out = bytearray()
    # All records go into one block of the index file, because readers accept blocks of any size.
    data = _append(out, _block(rows))
    meta = _append(out, _block([]))
    index = _append(out, _block([(rows[-1][0], data)]))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _field(tag: int, value: int) -> bytes:
    return bytes([tag]) + _varint(value)


def _message(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + _varint(len(content)) + content


def _checksum_field(checksum: int) -> bytes:
    return bytes([_CHECKSUM]) + struct.pack("<I", checksum)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _without_fields(message: bytes, tags: Collection[int]) -> bytes:
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


def _append(out: bytearray, block: bytes) -> bytes:
    handle = _varint(len(out)) + _varint(len(block))
    # Two fields follow each block in an index file: the block's compression type (0: none), and the checksum of block
    # and type.
    out += block + b"\0" + struct.pack("<I", masked_of(block + b"\0"))
    return handle


def _block(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    # The keys of a checkpoint's index are written whole, without prefix compression, because an index is small.
    out, restarts = bytearray(), [0]
    for i, (key, value) in enumerate(records):
        if i and i % _RESTART_EVERY == 0:
            restarts.append(len(out))
        out += _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
    return bytes(out) + b"".join(struct.pack("<I", number) for number in [*restarts, len(restarts)])
