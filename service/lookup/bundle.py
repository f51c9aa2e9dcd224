"""Reads a TensorFlow checkpoint ("tensor bundle") without TensorFlow: where each tensor's bytes lie.

PREFIX.index is an immutable sorted string table in leveldb's format whose values are BundleEntryProto; a numeric tensor
lies uncompressed and contiguous, row-major and little-endian, in PREFIX.data-?????-of-?????.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.h, tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/lib/io/format.h and block.cc (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import ArtifactError

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
# DataType enum of tensorflow/core/framework/types.proto -> numpy's name; bfloat16 has no numpy dtype of its own.
_DTYPES: Mapping[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Where one tensor lies.

    dtype: numpy's name, "bfloat16", or "other" (strings, resources) for what can not be mapped.
    file: the data shard; the tensor is nbytes at offset. No alignment is promised.
    crc32c: masked checksum of the bytes.
    is_sliced: saved in parts under keys of their own; nbytes is 0 then.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    crc32c: int
    is_sliced: bool


def read_bundle(prefix: Path) -> dict[str, BundleEntry]:
    """Returns every tensor of a checkpoint by its key.

    Args:
      prefix: the path without ".index", e.g. saved_model/variables/variables.

    Raises:
      ArtifactError: the index is missing, truncated, compressed, big-endian, or not an index at all.
    """
    path = prefix.with_name(prefix.name + ".index")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse_index(data, prefix)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ArtifactError(f"{path} is truncated or corrupt ({error})") from error
    except ValueError as error:
        raise ArtifactError(f"{path}: {error}") from error


def _parse_index(data: bytes, prefix: Path) -> dict[str, BundleEntry]:
    if len(data) < _FOOTER_BYTES or struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
        raise ValueError("not a checkpoint index (wrong magic number)")
    # The footer is two block handles (metaindex, index), each two varints, padded to 40 bytes, then the magic number.
    _, position = _block_handle(data, len(data) - _FOOTER_BYTES)
    index_handle, _ = _block_handle(data, position)
    records: dict[bytes, bytes] = {}
    for _, value in _block_records(data, *index_handle):
        handle, _ = _block_handle(value, 0)
        records.update(_block_records(data, *handle))
    header = dict(_proto_fields(records.pop(b"")))
    if header.get(2, 0):
        raise ValueError("big-endian checkpoints are not supported")
    num_shards = _integer(header.get(1, 1))
    return {
        key.decode(): _entry(value, prefix, num_shards)
        for key, value in records.items()
        if not key.startswith(b"\0")  # parts of sliced tensors; their keys are not names
    }


def _entry(value: bytes, prefix: Path, num_shards: int) -> BundleEntry:
    dtype = shard = offset = nbytes = crc32c = 0
    shape: tuple[int, ...] = ()
    is_sliced = False
    for field, content in _proto_fields(value):
        if field == 1:
            dtype = _integer(content)
        elif field == 2 and isinstance(content, bytes):
            dims = [dict(_proto_fields(dim)) for n, dim in _proto_fields(content) if n == 2 and isinstance(dim, bytes)]
            shape = tuple(_integer(dim.get(1, 0)) for dim in dims)
        elif field == 3:
            shard = _integer(content)
        elif field == 4:
            offset = _integer(content)
        elif field == 5:
            nbytes = _integer(content)
        elif field == 6:
            crc32c = _integer(content)
        elif field == 7:
            is_sliced = True
    return BundleEntry(
        dtype=_DTYPES.get(dtype, "other"),
        shape=shape,
        file=prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}"),
        offset=offset,
        nbytes=nbytes,
        crc32c=crc32c,
        is_sliced=is_sliced,
    )


def _block_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _block_records(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    # A block is followed by one byte of compression type and four of checksum; within it, keys share prefixes with the
    # key before, and an array of restart offsets with its count stands at the end.
    if data[offset + size]:
        raise ValueError(f"index block is compressed (type {data[offset + size]})")
    (num_restarts,) = struct.unpack_from("<I", data, offset + size - 4)
    end = offset + size - 4 * (num_restarts + 1)
    position, key = offset, b""
    while position < end:
        shared, position = _varint(data, position)
        unshared, position = _varint(data, position)
        length, position = _varint(data, position)
        if shared > len(key) or position + unshared + length > end:
            raise IndexError("record beyond its block")
        key = key[:shared] + data[position : position + unshared]
        position += unshared
        yield key, data[position : position + length]
        position += length


def _proto_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        match tag & 7:
            case 0:
                value, position = _varint(data, position)
                yield tag >> 3, value
            case 2:
                length, position = _varint(data, position)
                if position + length > len(data):
                    raise IndexError("field beyond its message")
                yield tag >> 3, data[position : position + length]
                position += length
            case 5:
                yield tag >> 3, struct.unpack_from("<I", data, position)[0]
                position += 4
            case 1:
                yield tag >> 3, struct.unpack_from("<Q", data, position)[0]
                position += 8
            case wire_type:
                raise ValueError(f"unknown wire type {wire_type}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
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


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number was expected where the file has bytes")
    return value
