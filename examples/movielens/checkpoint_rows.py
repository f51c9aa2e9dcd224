"""Reads rows of a table, whole or in shards, from a checkpoint's files, without having the whole table in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from model_export.errors import ExportError
from model_export.parity.integrity import saved_rows
from service.artifact.bundle import BundleEntry
from service.types import Array

_CHUNK_BYTES = 16 << 20


class CheckpointRows:
    """Reader of a [V, D] float32 variable of a checkpoint. Concurrency: any thread.

    Args:
      name: of the table, for error texts.
      entry: the variable; its shards, if there are any, hold consecutive rows.
      most_rows: reads only the first rows, at most this number; None: all rows.

    Raises:
      ExportError: the variable is no float32 matrix, or its shards do not hold each row once.
    """

    def __init__(self, name: str, entry: BundleEntry, most_rows: int | None = None) -> None:
        shards = [(part.start, part.entry) for part in entry.slices] or [((0, 0), entry)]
        ends = [start[0] + shard.shape[0] for start, shard in shards]
        whole_rows = all(start[1] == 0 and shard.shape[1] == entry.shape[1] for start, shard in shards)
        if not whole_rows or [start[0] for start, _ in shards] != [0, *ends[:-1]] or ends[-1] != entry.shape[0]:
            raise ExportError(f"table {name!r}: the shards in the checkpoint do not hold each of its rows once")
        if any(shard.dtype != "float32" for _, shard in shards):
            raise ExportError(f"table {name!r} is no float32 variable of the checkpoint")
        self._shards = [(start[0], shard) for start, shard in shards]
        self.shape = (entry.shape[0] if most_rows is None else min(most_rows, entry.shape[0]), entry.shape[1])

    def read(self, start: int, stop: int) -> Array:
        """Reads the rows [start, stop) from the shards that hold them: [stop - start, D] float32."""
        rows = np.empty((stop - start, self.shape[1]), "<f4")
        for first, shard in self._shards:
            begin, end = max(start, first), min(stop, first + shard.shape[0])
            if begin < end:
                try:
                    rows[begin - start : end - start] = saved_rows(shard, begin - first, end - first)
                except ValueError as error:
                    raise ExportError(f"{shard.file} ends before a table does") from error
        return rows

    def gather(self, ids: Array) -> Array:
        rows = np.empty((len(ids), self.shape[1]), "<f4")
        for place, row in enumerate(ids.tolist()):
            rows[place] = self.read(row, row + 1)[0]
        return rows

    def chunks(self) -> Iterator[Array]:
        """Yields all rows of the table in order, in chunks of up to 16 MB."""
        step = max(1, _CHUNK_BYTES // (4 * self.shape[1]))
        for start in range(0, self.shape[0], step):
            yield self.read(start, min(start + step, self.shape[0]))
