"""Writes checkpoints tensor by tensor, so that no tensor needs to fit into memory, and their index files.

Source: tensorflow/core/lib/io/table_builder.cc, format.cc, tensorflow/core/protobuf/tensor_bundle.proto and
tensorflow/core/util/tensor_bundle/tensor_bundle.cc, BundleWriter (TensorFlow 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from service.artifact.bundle import DTYPES, HEADER_KEY, BundleEntry, is_slice_key, read_records, tensor_records
from service.artifact.hashes import crc32c_of, masked, masked_of
from service.artifact.protos import message_class, varint
from service.errors import ArtifactError
from service.types import Array

_MAGIC = 0xDB4775248B80FB57
_RESTART_EVERY = 16
_HEADER, _ENTRY = "tensorflow.BundleHeaderProto", "tensorflow.BundleEntryProto"


def _new_record(entry: BundleEntry) -> bytes:
    """Makes the index record of a whole tensor, whose bytes lie in the checkpoint's only data shard."""
    number = next(number for number, name in DTYPES.items() if name == entry.dtype)
    made = message_class(_ENTRY)(dtype=number, offset=entry.offset, size=entry.nbytes, crc32c=entry.crc32c)
    # SetInParent() makes the shape present even for a scalar, which has no dims.
    made.shape.SetInParent()
    for size in entry.shape:
        made.shape.dim.add(size=size)
    return bytes(made.SerializeToString())


def _changed(record: bytes, **fields: int) -> bytes:
    made = message_class(_ENTRY).FromString(record)
    for name, value in fields.items():
        setattr(made, name, value)
    return bytes(made.SerializeToString())


def replace_checksums(index: bytes, checksums: Mapping[str, int]) -> bytes:
    """Returns a copy of a checkpoint's index with new masked CRC32C checksums, which are given by the tensor's key."""
    records = read_records(index)
    for name, checksum in checksums.items():
        if name.encode() not in records:
            raise ArtifactError(f"the index has no {name!r}")
        records[name.encode()] = _changed(records[name.encode()], crc32c=checksum)
    return _new_index(records)


def _new_index(records: Mapping[bytes, bytes]) -> bytes:
    rows = sorted(records.items())
    out = bytearray()
    # All records go into one block of the index file, because readers accept blocks of any size.
    data = _append(out, _block(rows))
    meta = _append(out, _block([]))
    index = _append(out, _block([(rows[-1][0], data)]))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _append(out: bytearray, block: bytes) -> bytes:
    handle = varint(len(out)) + varint(len(block))
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
        out += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    return bytes(out) + b"".join(struct.pack("<I", number) for number in [*restarts, len(restarts)])


# Alignment of each tensor in the file. A row that starts at a cache line spans the fewest cache lines; TensorFlow's
# checkpoints guarantee no alignment.
_ALIGNMENT = 64
_CHUNK_BYTES = 16 << 20


class BundleWriter:
    """Writer of PREFIX.data-00000-of-00001 and, when the `with` block ends without an exception, of PREFIX.index.

    Concurrency: one caller at a time. All methods raise OSError if the disk is full.

    Args:
      prefix: path of the new checkpoint without ".index"; its folder is created.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._shard = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._shard.open("xb", buffering=0)
        header = message_class(_HEADER)(num_shards=1, version={"producer": 1})
        self._records: dict[bytes, bytes] = {HEADER_KEY: header.SerializeToString()}
        self._end = 0

    def add(self, key: str, dtype: str, pieces: Iterable[Array]) -> tuple[int, ...]:
        """Writes a new tensor into the checkpoint, piece by piece, and returns the tensor's shape.

        Args:
          dtype: a name of service.artifact.bundle.DTYPES.
          pieces: the tensor's rows in order, one or more little-endian [n, ...] arrays; for bfloat16 their bits.
        """
        start, crc, rows = self._begin_tensor(), 0, 0
        columns: tuple[int, ...] = ()
        for piece in pieces:
            octets = piece.reshape(-1).view(np.uint8).data
            crc = crc32c_of(octets, crc)
            self._write(octets)
            rows, columns = rows + len(piece), piece.shape[1:]
        shape = (rows, *columns)
        entry = BundleEntry(dtype, shape, self._shard, start, self._end - start, masked(crc))
        self._records[key.encode()] = _new_record(entry)
        return shape

    def copy(self, source: Path, is_kept: Callable[[str], bool]) -> None:
        """Copies the chosen tensors of another checkpoint into this one, and the other checkpoint's header.

        Args:
          source: path of the other checkpoint without ".index".
          is_kept: called with the key of each tensor; says whether to copy it.
        """
        records = read_records(source.with_name(source.name + ".index").read_bytes())
        header = message_class(_HEADER).FromString(records[HEADER_KEY])
        header.num_shards = 1
        self._records[HEADER_KEY] = header.SerializeToString()
        for key in records:
            if key == HEADER_KEY or is_slice_key(key) or not is_kept(key.decode()):
                continue
            for part, entry in tensor_records(records, source, key.decode()):
                self._records[part] = _changed(records[part], shard_id=0, offset=self._begin_tensor())
                self._append_file(entry)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is None:
            self._prefix.with_name(self._prefix.name + ".index").write_bytes(_new_index(self._records))

    def _begin_tensor(self) -> int:
        self._write(memoryview(bytes(-self._end % _ALIGNMENT)))
        return self._end

    def _append_file(self, entry: BundleEntry) -> None:
        # The record of a partitioned tensor has no bytes of its own; the records of its parts have them.
        if not entry.nbytes:
            return
        with entry.file.open("rb") as file:
            file.seek(entry.offset)
            left = entry.nbytes
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(f"{entry.file} ends before a tensor does")
                self._write(memoryview(chunk))
                left -= len(chunk)

    def _write(self, octets: memoryview) -> None:
        self._end += len(octets)
        # write() of more than 2 GB may write only part of the bytes.
        while octets:
            octets = octets[self._file.write(octets) or 0 :]
