"""Writes a checkpoint tensor by tensor: new tensors from arrays, and tensors copied from another checkpoint.

No tensor needs to fit into memory.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, BundleWriter (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import numpy as np

from model_export.exporter.bundle_index import header_of_one_shard, moved_record, new_header, new_index, new_record
from service.artifact.bundle import HEADER_KEY, BundleEntry, is_slice_key, tensor_records
from service.artifact.crc32c import crc32c_of, masked
from service.artifact.sorted_table import read_records
from service.types import Array

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
        self._records: dict[bytes, bytes] = {HEADER_KEY: new_header()}
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
        self._records[key.encode()] = new_record(entry)
        return shape

    def copy(self, source: Path, is_kept: Callable[[str], bool]) -> None:
        """Copies the chosen tensors of another checkpoint into this one, and the other checkpoint's header.

        Args:
          source: path of the other checkpoint without ".index".
          is_kept: called with the key of each tensor; says whether to copy it.
        """
        records = read_records(source.with_name(source.name + ".index").read_bytes())
        self._records[HEADER_KEY] = header_of_one_shard(records[HEADER_KEY])
        for key in records:
            if key == HEADER_KEY or is_slice_key(key) or not is_kept(key.decode()):
                continue
            for part, entry in tensor_records(records, source, key.decode()):
                self._records[part] = moved_record(records[part], self._begin_tensor())
                self._append_file(entry)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._prefix.with_name(self._prefix.name + ".index").write_bytes(new_index(self._records))

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
