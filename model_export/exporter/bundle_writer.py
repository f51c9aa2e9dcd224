"""Writes a checkpoint of one shard: tensors of another checkpoint byte for byte, and new ones a chunk at a time.

No tensor is held in memory. What is copied keeps its record in the index but for its place.

Source: tensorflow/core/protobuf/tensor_bundle.proto, tensorflow/core/util/tensor_bundle/tensor_bundle.cc
(TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from model_export.exporter.bundle_index import CHECKSUM_TAG, masked_checksum, sorted_table, varint, without_fields
from service.files.crc32c import crc32c_of
from service.lookup.sorted_table import read_records, read_varint

# BundleEntryProto: dtype, shape, shard_id, offset, size; BundleHeaderProto: num_shards, which has tag 1, too.
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE = 1 << 3, 2 << 3 | 2, 3 << 3, 4 << 3, 5 << 3
_NUM_SHARDS = 1 << 3
_HEADER_KEY = b""
_CHUNK_BYTES = 16 << 20
# DataType of tensorflow/core/framework/types.proto.
_DTYPES = {"float32": 1, "uint8": 4, "int8": 6, "bfloat16": 14, "float16": 19}


class BundleWriter:
    """A checkpoint being written; finish() makes its index. Concurrency: one caller at a time.

    Args:
      prefix: its path without ".index".
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._records: dict[bytes, bytes] = {}
        self._end = 0
        self._data = prefix.with_name(prefix.name + ".data-00000-of-00001").open("wb")

    def copy(self, source: Path, is_kept: Callable[[str], bool]) -> None:
        """Copies tensors of another checkpoint; source: its path without ".index"."""
        records = read_records(source.with_name(source.name + ".index").read_bytes())
        header = records.pop(_HEADER_KEY)
        shards = _numbers(header).get(_NUM_SHARDS, 1)
        self._records[_HEADER_KEY] = bytes([_NUM_SHARDS, 1]) + without_fields(header, {_NUM_SHARDS})
        for key, record in records.items():
            # The key of a part begins with a zero byte and goes where its tensor goes.
            if key[:1] == b"\0" or is_kept(key.decode()):
                place = _numbers(record)
                file = source.with_name(f"{source.name}.data-{place.get(_SHARD, 0):05d}-of-{shards:05d}")
                kept = without_fields(record, {_SHARD, _OFFSET})
                self._records[key] = kept + _field(_OFFSET, self._end)
                self._append_file(file, place.get(_OFFSET, 0), place.get(_SIZE, 0))

    def add(self, key: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[bytes]) -> None:
        """Adds a tensor, whose bytes come in order; dtype: as an index names it."""
        start, crc = self._end, 0
        for chunk in chunks:
            crc = crc32c_of(chunk, crc)
            self._data.write(chunk)
            self._end += len(chunk)
        sizes = b"".join(_message(2 << 3 | 2, _field(1 << 3, size)) for size in shape)
        self._records[key.encode()] = (
            _field(_DTYPE, _DTYPES[dtype])
            + _message(_SHAPE, sizes)
            + _field(_OFFSET, start)
            + _field(_SIZE, self._end - start)
            + bytes([CHECKSUM_TAG])
            + struct.pack("<I", masked_checksum(crc))
        )

    def finish(self) -> None:
        """Writes the index; nothing can be added then."""
        self._data.close()
        self._prefix.with_name(self._prefix.name + ".index").write_bytes(sorted_table(self._records))

    def close(self) -> None:
        """Closes the shard, finished or not."""
        self._data.close()

    def _append_file(self, path: Path, offset: int, size: int) -> None:
        if not size:
            return
        with path.open("rb") as file:
            file.seek(offset)
            while size:
                chunk = file.read(min(size, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(f"{path} ends before a tensor does")
                self._data.write(chunk)
                self._end += len(chunk)
                size -= len(chunk)


def _numbers(message: bytes) -> dict[int, int]:
    # Tag -> value of the fields that are plain numbers.
    found: dict[int, int] = {}
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        if tag & 7 == 0:
            found[tag], position = read_varint(message, position)
        elif tag & 7 == 2:
            length, position = read_varint(message, position)
            position += length
        else:
            position += 4 if tag & 7 == 5 else 8
    return found


def _field(tag: int, value: int) -> bytes:
    return bytes([tag]) + varint(value)


def _message(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content
