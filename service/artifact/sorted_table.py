"""Reads leveldb's immutable sorted string table, the format of a checkpoint's index.

The file is a row of blocks and a footer, which says where the block of block handles lies. Checksums of blocks are not
compared.

Source: tensorflow/core/lib/io/format.h, block.cc and table_builder.cc (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from service.artifact import snappy

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_PLAIN, _SNAPPY = 0, 1
# Most bytes of memory that the records of an index may take: a record of three bytes may share a long key with the one
# before it. The second number is what Python needs beside the bytes of a key and its value.
_MAX_BYTES = 512 << 20
_RECORD_BYTES = 200


def read_records(data: bytes) -> dict[bytes, bytes]:
    """Returns all records of a sorted string table, as key -> value.

    Raises:
      ValueError, IndexError, struct.error: the bytes are not a complete table.
    """
    if len(data) < _FOOTER_BYTES or struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
        raise ValueError("not a checkpoint index (wrong magic number)")
    # The file's footer: the handles of the metaindex block and of the index block (two varints each), padded to 40
    # bytes, then the magic number.
    _, position = _block_handle(data, len(data) - _FOOTER_BYTES)
    index_handle, _ = _block_handle(data, position)
    records: dict[bytes, bytes] = {}
    end = size_in_memory = 0
    for _, value in _block_records(_block(data, *index_handle)):
        (offset, size), _ = _block_handle(value, 0)
        # Data blocks may not overlap: a corrupt index that names one block many times would make the server read it as
        # often.
        if offset < end:
            raise ValueError("index blocks overlap")
        end = offset + size
        for key, record in _block_records(_block(data, offset, size)):
            records[key] = record
            size_in_memory += len(key) + len(record) + _RECORD_BYTES
            if size_in_memory > _MAX_BYTES:
                raise ValueError(f"its records take more than {_MAX_BYTES} bytes of memory, the most that are read")
    return records


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a varint of up to 64 bits; returns its value and the position behind it. Raises IndexError, ValueError."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7
        if shift > 63:
            raise ValueError("varint longer than 64 bits")


def _block_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int) -> bytes:
    # In leveldb's table format, one byte of compression type and four bytes of checksum follow each block.
    kind = data[offset + size]
    block = data[offset : offset + size]
    if kind == _SNAPPY:
        return snappy.decompress(block)
    if kind != _PLAIN:
        raise ValueError(f"index block is compressed in an unknown way (type {kind})")
    return block


def _block_records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    # Each record of a block stores only the part of its key that differs from the previous record's key; an array of
    # restart offsets and its length end the block.
    (num_restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (num_restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        if shared > len(key) or position + unshared + length > end:
            raise IndexError("record beyond its block")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length
