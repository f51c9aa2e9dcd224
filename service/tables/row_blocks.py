"""Copies rows of several tables side by side into the blocks of one buffer, without conversion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from service.artifact.manifest import BadIdPolicy
from service.tables.kernel_codes import POLICIES
from service.tables.numpy_kernels import REFUSED, rows_read
from service.tables.table import MappedTable
from service.types import Array

# In the buffer that TensorFlow is fed from, each block of looked-up rows begins at a multiple of this many bytes:
# TensorFlow would copy an array that does not.
_ALIGNED_BYTES = 64
_AS_STORED = ("float32", "float16", "bfloat16", "float64")


class BlockPart(NamedTuple):
    """The columns of a block (rows of several tables side by side) that hold rows of one table.

    policy, default_row: for an id outside [0, V), as in manifest.LookupFeature.
    per_row: K if the ids are [B, K]; 1 if they are [B], or if the part is a block of its own.
    """

    table: MappedTable
    policy: BadIdPolicy = "error"
    default_row: int = 0
    per_row: int = 1

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one table's rows in each row of a block (rows of several tables side by side)."""
        size: int = self.table.row_bytes * self.per_row
        return size


class BlockLayout(NamedTuple):
    """The byte ranges of all blocks in one buffer, given the blocks' numbers of rows. begins: offsets of the blocks."""

    rows: tuple[int, ...]
    begins: tuple[int, ...]
    num_bytes: int


class _Place(NamedTuple):
    """The place of one table's rows: the number of the block, and the byte range within each row of the block."""

    part: BlockPart
    block: int
    columns: slice


class RowBlocks:
    """The writer of blocks: each block is [B, bytes] and has its parts' rows side by side. Concurrency: any thread.

    Args:
      blocks: for each block, its parts in order; an int is a gap of that many bytes per row, which the caller fills.
    """

    def __init__(self, blocks: Sequence[Sequence[BlockPart | int]]) -> None:
        self._pitches: list[int] = []
        self._places: list[_Place] = []
        for number, block in enumerate(blocks):
            widths = [part if isinstance(part, int) else part.row_bytes for part in block]
            for part, end, width in zip(block, accumulate(widths), widths, strict=True):
                if not isinstance(part, int):
                    self._places.append(_Place(part, number, slice(end - width, end)))
            self._pitches.append(sum(widths))

    @staticmethod
    def takes(table: MappedTable) -> bool:
        """Says whether a table's rows can be copied into blocks: not if they are int8 or int4, which have scales."""
        return table.info.dtype in _AS_STORED

    def lay_out(self, rows: Sequence[int]) -> BlockLayout:
        """Computes the byte ranges of all blocks in one buffer from the blocks' numbers of rows."""
        begins, end = [], 0
        for count, pitch in zip(rows, self._pitches, strict=True):
            begins.append(end)
            end += count * pitch
            end += -end % _ALIGNED_BYTES
        return BlockLayout(tuple(rows), tuple(begins), end)

    def write(self, ids: Sequence[Array], layout: BlockLayout) -> Array | int:
        """Copies table rows into blocks; returns the buffer, or the number of the first part with an id without row.

        Args:
          ids: the ids of each part in the order of the blocks, integers of any shape, K for each row of the block.
        """
        buffer: Array = np.empty(layout.num_bytes + _ALIGNED_BYTES, np.uint8)
        skipped = -buffer.ctypes.data % _ALIGNED_BYTES
        out = buffer[skipped : skipped + layout.num_bytes]
        blocks = [
            out[begin : begin + rows * pitch].reshape(rows, pitch)
            for begin, rows, pitch in zip(layout.begins, layout.rows, self._pitches, strict=True)
        ]
        for number, (place, sent) in enumerate(zip(self._places, ids, strict=True)):
            part, to = place.part, blocks[place.block][:, place.columns]
            size = part.table.info.vocabulary_size
            rows, missing = rows_read(sent.reshape(-1), size, POLICIES[part.policy], part.default_row)
            if missing and (rows == REFUSED).any():
                return number
            found = part.table.weights[np.maximum(rows, 0)]
            if missing:
                found[rows < 0] = 0
            to[...] = found.view(np.uint8).reshape(to.shape)
        return out
