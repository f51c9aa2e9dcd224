"""Writes a checkpoint tensor by tensor, each from pieces of any size, so that no tensor has to fit in memory.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, BundleWriter (TensorFlow 2.21).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np

from model_export.exporter.bundle_index import new_index
from service.core.types import Array
from service.files.crc32c import crc32c_of, masked
from service.lookup.bundle import BundleEntry

# TensorFlow promises none; rows that begin with a cache line are read with the fewest of them.
_ALIGNMENT = 64


class BundleWriter:
    """Writes PREFIX.data-00000-of-00001, and when the `with` block ends well PREFIX.index.

    Concurrency: one caller at a time. Raises OSError where the disk is full.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._shard = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._shard.open("xb", buffering=0)
        self._tensors: dict[str, BundleEntry] = {}
        self._start = self._end = self._crc = 0

    def append(self, numbers: Array) -> None:
        """Writes the next numbers of the current tensor: C order, little-endian; of bfloat16 their bits."""
        view = numbers.reshape(-1).view(np.uint8).data
        self._crc = crc32c_of(view, self._crc)
        self._end += len(view)
        while view:
            view = view[self._file.write(view) or 0 :]

    def end_tensor(self, key: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Names what append() has written since the tensor before; dtype: a name of service.lookup.bundle.DTYPES."""
        entry = BundleEntry(dtype, shape, self._shard, self._start, self._end - self._start, masked(self._crc))
        self._tensors[key] = entry
        padding = -self._end % _ALIGNMENT
        self._file.write(bytes(padding))
        self._start = self._end = self._end + padding
        self._crc = 0

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._prefix.with_name(self._prefix.name + ".index").write_bytes(new_index(self._tensors))
