r"""Finds, without TensorFlow, where the bytes of each tensor lie in the files of a TensorFlow checkpoint.

PREFIX.index is leveldb's sorted string table whose values are BundleEntryProto; a numeric tensor lies
uncompressed and contiguous, row-major and little-endian, in PREFIX.data-?????-of-?????. A partitioned variable has an
entry of its own without bytes, and one entry for each of its slices, whose keys sort in the order of the slices. The
table is a row of blocks and a footer, which says where the block of block handles lies; some builds of TensorFlow
compress blocks by snappy. Checksums of blocks are not compared.

>>> slice_key("t", ((0, 2), (0, -1)))
b'\x00t\x00\x01\x01\x02\x80\x82\x80\x7f'

>>> decompress(b"\x06\x04ab\x01\x02")
b'ababab'

Source: tensorflow/core (2.21): util/tensor_bundle/tensor_bundle.h, protobuf/tensor_bundle.proto,
framework/tensor_slice.proto; EncodeTensorNameSlice of util/saved_tensor_slice_util.cc, lib/strings/ordered_code.cc;
lib/io/format.h, block.cc, table_builder.cc. google/snappy 59aeffa, format_description.txt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from service.artifact.hashes import masked_of
from service.artifact.protos import check_num_fields, length_prefix, message_class
from service.artifact.tensor_proto import dtype_name
from service.errors import ArtifactError, os_errors_as

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
    numbers = b"".join(_ordered(start) + _ordered(length) for start, length in extents)
    return _unsigned(0) + escaped + b"\0\1" + _unsigned(len(extents)) + numbers


def _unsigned(value: int) -> bytes:
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _ordered(value: int) -> bytes:
    # TensorFlow's ordered code encodes a signed number in n bytes as n header bits, one sign bit and 7 n - 1 bits of
    # the number.
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    if size > len(_HEADERS):
        raise ValueError(f"a slice has the number {value}")
    digits = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    return bytes([digits[0] ^ _HEADERS[size - 1]]) + digits[1:]


# Upper limit of decompressed bytes per compressed byte: the densest snappy element is 3 bytes that copy 64 bytes.
_MOST_PER_BYTE = 22
_OFFSET_BYTES = {1: 1, 2: 2, 3: 4}


def decompress(data: bytes) -> bytes:
    """Decompresses raw snappy data; returns the bytes.

    Raises:
      ValueError: the data is cut off, copies from before its start, or does not yield the length in its header.
    """
    length, position = _length(data)
    if length > _MOST_PER_BYTE * len(data):
        raise ValueError(f"snappy: {len(data)} bytes promise {length}")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind = tag & 3
        if kind == 0:
            size, position = _literal_size(data, tag >> 2, position)
            if size > len(data) - position:
                raise ValueError("snappy: a literal is cut off")
            out += data[position : position + size]
            position += size
        else:
            width = _OFFSET_BYTES[kind]
            if width > len(data) - position:
                raise ValueError("snappy: an offset is cut off")
            offset = int.from_bytes(data[position : position + width], "little")
            position += width
            size = (tag >> 2) + 1
            if kind == 1:
                size = (tag >> 2 & 7) + 4
                offset |= tag >> 5 << 8
            _copy(out, offset, size)
        if len(out) > length:
            break
    if len(out) != length:
        raise ValueError(f"snappy: {len(out)} bytes or more instead of {length}")
    return bytes(out)


def _length(data: bytes) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[:5]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, i + 1
    raise ValueError("snappy: the length is cut off or too large")


def _literal_size(data: bytes, code: int, position: int) -> tuple[int, int]:
    # Snappy keeps the size of a literal of up to 60 bytes in the tag byte; for longer literals, the codes 60 to 63 say
    # that the size is in the next one to four bytes.
    if code < 60:
        return code + 1, position
    width = code - 59
    if width > len(data) - position:
        raise ValueError("snappy: a literal is cut off")
    return int.from_bytes(data[position : position + width], "little") + 1, position + width


def _copy(out: bytearray, offset: int, size: int) -> None:
    if not 0 < offset <= len(out):
        raise ValueError(f"snappy: a copy from {offset} bytes before, of {len(out)}")
    # A snappy copy may be longer than its offset: then it reads bytes that it has just written, and the bytes from
    # `start` repeat.
    start = len(out) - offset
    piece = out[start : start + size]
    out += (piece * (size // len(piece) + 1))[:size]


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
    value, behind = length_prefix(data, position)
    if value is None:
        raise ValueError("varint longer than 64 bits") if behind < len(data) else IndexError("a number is cut off")
    return value, behind


def _block_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int) -> bytes:
    # In leveldb's table format, one byte of compression type and four bytes of checksum follow each block.
    kind = data[offset + size]
    block = data[offset : offset + size]
    if kind == _SNAPPY:
        return decompress(block)
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


# Type of a slice's place in its tensor: (start, length) for each dimension; length -1 means the whole dimension.
_Extents = tuple[tuple[int, int], ...]
HEADER_KEY = b""
_SHARD = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")
# DataType number -> name of each dtype whose tensors can be mapped: those of fixed size, and not complex.
DTYPES: Mapping[int, str] = {
    number: name
    for number in range(1, 24)
    if (name := dtype_name(number)) == "bfloat16" or name.lstrip("u").startswith(("float", "int")) or name == "bool"
}


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """The place of one tensor's bytes in a checkpoint, or of one slice of a tensor.

    dtype: numpy's name, "bfloat16", or "other" for strings and resources, which can not be mapped.
    file: the data shard; the tensor is nbytes at offset. No alignment is promised.
    crc32c: masked checksum of the bytes.
    slices: the tensor's slices in order of their start, if it was saved in slices; nbytes is 0 then.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    crc32c: int
    slices: tuple[BundleSlice, ...] = ()

    @property
    def is_sliced(self) -> bool:
        return bool(self.slices)


class BundleSlice(NamedTuple):
    """One slice of a tensor in a checkpoint.

    start: index of the slice's first element in the tensor. entry.shape: the sizes of the slice.
    """

    start: tuple[int, ...]
    entry: BundleEntry


def prefix_of(shard: Path) -> Path:
    """Returns the path prefix of the checkpoint that a data shard file belongs to.

    Raises:
      ArtifactError: the name is not that of a data shard.

    >>> prefix_of(Path("variables/variables.data-00000-of-00001")).as_posix()
    'variables/variables'
    """
    found = _SHARD.fullmatch(shard.name)
    if found is None:
        raise ArtifactError(f"{shard} is not named as a data file of a checkpoint")
    return shard.with_name(found.group(1))


def read_bundle(prefix: Path) -> dict[str, BundleEntry]:
    """Reads the index of a checkpoint; returns key -> place of each tensor's bytes.

    Args:
      prefix: the path without ".index", e.g. saved_model/variables/variables.

    Raises:
      ArtifactError: the index is missing, truncated, corrupt, big-endian, or not an index at all.
    """
    path = prefix.with_name(prefix.name + ".index")
    with os_errors_as(ArtifactError, f"cannot read {path}"):
        data = path.read_bytes()
    try:
        return _parse_index(data, prefix)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error, DecodeError) as error:
        raise ArtifactError(f"{path} is truncated or corrupt ({error})") from error
    except ValueError as error:
        raise ArtifactError(f"{path}: {error}") from error


def read_string(prefix: Path, name: str) -> bytes:
    """Reads a scalar string of a checkpoint, such as the object graph that TensorFlow 2 stores beside variables.

    Args:
      prefix: as for read_bundle().

    Raises:
      ArtifactError: the checkpoint can not be read, lacks the string, or its bytes do not fit their checksum.

    Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, WriteStringTensor (2.21).
    """
    entry = read_bundle(prefix).get(name)
    if entry is None:
        raise ArtifactError(f"checkpoint {prefix} has no entry {name!r}")
    with os_errors_as(ArtifactError, f"cannot read {entry.file}"), entry.file.open("rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.nbytes)
    try:
        size, start = read_varint(data, 0)
    except (IndexError, ValueError) as error:
        raise ArtifactError(f"{entry.file}: {name!r} is truncated or corrupt") from error
    # The checksum covers the length as 4 bytes and not as the varint of the file, then the length's own checksum and
    # the string.
    if masked_of(struct.pack("<I", size & 0xFFFFFFFF) + data[start:]) != entry.crc32c or len(data) != start + 4 + size:
        raise ArtifactError(f"{entry.file}: {name!r} does not fit its checksum")
    return data[start + 4 :]


def is_slice_key(key: bytes) -> bool:
    return key.startswith(b"\0")


def tensor_records(records: Mapping[bytes, bytes], prefix: Path, name: str) -> Iterator[tuple[bytes, BundleEntry]]:
    """Yields key and entry of a tensor's records in a checkpoint's index: the tensor's own, then one for each slice.

    Args:
      records: all records of a checkpoint's index.
      prefix: path of the checkpoint without ".index".
    """
    num_shards = _num_shards(records[HEADER_KEY], prefix)
    entry, extents = _entry(records[name.encode()], prefix, num_shards)
    yield name.encode(), entry
    for extent in extents:
        key = slice_key(name, extent)
        yield key, _entry(records[key], prefix, num_shards)[0]


def _parse_index(data: bytes, prefix: Path) -> dict[str, BundleEntry]:
    records = read_records(data)
    num_shards = _num_shards(records.pop(HEADER_KEY), prefix)
    found = {key: _entry(value, prefix, num_shards) for key, value in records.items()}
    return {
        (name := key.decode()): _with_slices(name, entry, extents, found) if extents else entry
        for key, (entry, extents) in found.items()
        if not is_slice_key(key)
    }


def _num_shards(header: bytes, prefix: Path) -> int:
    found = _parsed("BundleHeaderProto", header, prefix)
    if found.endianness:
        raise ValueError("big-endian checkpoints are not supported")
    return found.num_shards or 1


def _with_slices(
    name: str, entry: BundleEntry, extents: list[_Extents], found: Mapping[bytes, tuple[BundleEntry, list[_Extents]]]
) -> BundleEntry:
    slices = []
    for extent in extents:
        part, _ = found.get(slice_key(name, extent), (None, None))
        if part is None or len(extent) != len(entry.shape):
            raise ValueError(f"{name!r} has a slice {list(extent)} that is not there or is none of {entry.shape}")
        shape = tuple(
            size - start if length < 0 else length for (start, length), size in zip(extent, entry.shape, strict=True)
        )
        if part.shape != shape or part.dtype != entry.dtype:
            raise ValueError(f"{name!r} has a slice of {part.dtype} {part.shape}, expected {entry.dtype} {shape}")
        slices.append(BundleSlice(tuple(start for start, _ in extent), part))
    return replace(entry, slices=tuple(sorted(slices, key=lambda part: part.start)))


def _entry(value: bytes, prefix: Path, num_shards: int) -> tuple[BundleEntry, list[_Extents]]:
    found = _parsed("BundleEntryProto", value, prefix)
    entry = BundleEntry(
        dtype=DTYPES.get(found.dtype, "other"),
        shape=tuple(dim.size for dim in found.shape.dim),
        file=prefix.with_name(f"{prefix.name}.data-{found.shard_id:05d}-of-{num_shards:05d}"),
        offset=found.offset,
        nbytes=found.size,
        crc32c=found.crc32c,
    )
    return entry, [
        tuple((one.start, one.length if one.HasField("length") else -1) for one in part.extent) for part in found.slices
    ]


def _parsed(name: str, data: bytes, prefix: Path) -> Any:
    check_num_fields(f"an entry of {prefix}.index", data, f"tensorflow.{name}")
    return message_class(f"tensorflow.{name}").FromString(data)
