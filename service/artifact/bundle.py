"""Finds, without TensorFlow, where the bytes of each tensor lie in the files of a TensorFlow checkpoint.

PREFIX.index is a sorted string table (sorted_table.py) whose values are BundleEntryProto; a numeric tensor lies
uncompressed and contiguous, row-major and little-endian, in PREFIX.data-?????-of-?????. A partitioned variable has an
entry of its own without bytes, and one entry for each of its slices.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.h, tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/framework/tensor_slice.proto (TensorFlow 2.21).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from service.artifact.crc32c import masked_of
from service.artifact.ordered_code import slice_key
from service.artifact.sorted_table import read_records, read_varint
from service.errors import ArtifactError

# Type of a slice's place in its tensor: (start, length) for each dimension; length -1 means the whole dimension.
_Extents = tuple[tuple[int, int], ...]
HEADER_KEY = b""
_SHARD = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")
# Number in the DataType enum of tensorflow/core/framework/types.proto -> numpy's dtype name; numpy itself lacks
# bfloat16.
DTYPES: Mapping[int, str] = {
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
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.nbytes)
        size, start = read_varint(data, 0)
    except OSError as error:
        raise ArtifactError(f"cannot read {entry.file}: {error.strerror}") from error
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
    num_shards = _num_shards(records[HEADER_KEY])
    entry, extents = _entry(records[name.encode()], prefix, num_shards)
    yield name.encode(), entry
    for extent in extents:
        key = slice_key(name, extent)
        yield key, _entry(records[key], prefix, num_shards)[0]


def _parse_index(data: bytes, prefix: Path) -> dict[str, BundleEntry]:
    records = read_records(data)
    num_shards = _num_shards(records.pop(HEADER_KEY))
    found = {key: _entry(value, prefix, num_shards) for key, value in records.items()}
    return {
        (name := key.decode()): _with_slices(name, entry, extents, found) if extents else entry
        for key, (entry, extents) in found.items()
        if not is_slice_key(key)
    }


def _num_shards(header: bytes) -> int:
    fields = dict(_proto_fields(header))
    if fields.get(2, 0):
        raise ValueError("big-endian checkpoints are not supported")
    return _integer(fields.get(1, 1))


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
    dtype = shard = offset = nbytes = crc32c = 0
    shape: tuple[int, ...] = ()
    extents: list[_Extents] = []
    for field, content in _proto_fields(value):
        if field == 1:
            dtype = _integer(content)
        elif field == 2:
            shape = tuple(_signed(dim.get(1, 0)) for dim in _messages(content, 2))
        elif field == 3:
            shard = _integer(content)
        elif field == 4:
            offset = _integer(content)
        elif field == 5:
            nbytes = _integer(content)
        elif field == 6:
            crc32c = _integer(content)
        elif field == 7:
            extents.append(
                tuple((_signed(extent.get(1, 0)), _signed(extent.get(2, -1))) for extent in _messages(content, 1))
            )
    entry = BundleEntry(
        dtype=DTYPES.get(dtype, "other"),
        shape=shape,
        file=prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}"),
        offset=offset,
        nbytes=nbytes,
        crc32c=crc32c,
    )
    return entry, extents


def _messages(data: int | bytes, field: int) -> Iterator[dict[int, int | bytes]]:
    """Yields the messages in one repeated field of a serialized protobuf message, each as field number -> value."""
    if not isinstance(data, bytes):
        raise ValueError("a message was expected where the file has a number")
    for number, content in _proto_fields(data):
        if number == field and isinstance(content, bytes):
            yield dict(_proto_fields(content))


def _proto_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        match tag & 7:
            case 0:
                value, position = read_varint(data, position)
                yield tag >> 3, value
            case 2:
                length, position = read_varint(data, position)
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


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number was expected where the file has bytes")
    return value


def _signed(value: int | bytes) -> int:
    number = _integer(value)
    return number - (1 << 64) if number >> 63 == 1 else number
