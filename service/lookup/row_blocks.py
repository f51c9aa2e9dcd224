"""Writes rows of several tables into one buffer by one compiled call, side by side in blocks.

Rows are copied as they are stored, bit for bit; nothing is converted or combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import njit, types

from service.core.manifest import BadIdPolicy
from service.core.types import Array
from service.lookup.kernels import CLAMP, DEFAULT_ROW, DROP, DROP_NEGATIVE
from service.lookup.plan import POLICIES
from service.lookup.table import MappedTable
from service.lookup.vectors import copy_row, prefetch

OK = -1
# TensorFlow copies an array that does not begin at a multiple of 64 bytes.
_ALIGNED_BYTES = 64
# A buffer that this many bytes fit in is written while the interpreter's lock is held: giving the lock up and getting
# it back, with 8 threads that want it, took longer than the 10 us that copying 64 KB takes.
_HELD_BYTES = 64 << 10
_AHEAD = 16
# Rows are copied in words of this many bytes.
_WORD_BYTES = 4
_AS_STORED = ("float32", "float16", "bfloat16", "float64")

# Columns of a plan; each row of the plan describes one BlockPart.
_TABLE_AT, _ROW_BYTES, _ROWS, _POLICY, _DEFAULT_ROW, _BLOCK, _PLACE, _PITCH, _PER_ROW = range(9)

_INT = types.int64
_PLAN = types.Array(types.int64, 2, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.Array(types.uint8, 1, "C")


@njit
def _write(plan, ids, counts, begins, out):  # type: ignore[no-untyped-def]
    # Returns OK, or the number of the part that has an id without a row and no policy for it.
    first = 0
    for p in range(plan.shape[0]):
        table_at, row_bytes, rows = plan[p, _TABLE_AT], plan[p, _ROW_BYTES], plan[p, _ROWS]
        policy, pitch, per_row = plan[p, _POLICY], plan[p, _PITCH], plan[p, _PER_ROW]
        to = begins[plan[p, _BLOCK]] + plan[p, _PLACE]
        end = first + counts[p]
        for i in range(first, min(first + _AHEAD, end)):
            prefetch(table_at + min(max(ids[i], 0), rows - 1) * row_bytes, row_bytes)
        column = 0
        for i in range(first, end):
            if i + _AHEAD < end:
                prefetch(table_at + min(max(ids[i + _AHEAD], 0), rows - 1) * row_bytes, row_bytes)
            row = ids[i]
            if row < 0 or row >= rows:
                if policy == DEFAULT_ROW:
                    row = plan[p, _DEFAULT_ROW]
                elif policy == CLAMP:
                    row = 0 if row < 0 else rows - 1
                elif policy == DROP or (policy == DROP_NEGATIVE and row < 0):
                    row = -1
                else:
                    return p
            at = to + column * row_bytes
            if row >= 0:
                row_at = table_at + row * row_bytes
                copy_row(np.float32(0), row_at, 0, row_bytes // _WORD_BYTES, out.ctypes.data + at)
            else:
                out[at : at + row_bytes] = 0
            column += 1
            if column == per_row:
                column = 0
                to += pitch
        first = end
    return OK


_SIGNATURE = _INT(_PLAN, _INTS, _INTS, _INTS, _OUT)


# Two functions: numba's cache would take one function compiled with and without nogil for the same.
@njit(_SIGNATURE, cache=True)
def _write_held(plan, ids, counts, begins, out):  # type: ignore[no-untyped-def]
    return _write(plan, ids, counts, begins, out)


@njit(_SIGNATURE, cache=True, nogil=True)
def _write_released(plan, ids, counts, begins, out):  # type: ignore[no-untyped-def]
    return _write(plan, ids, counts, begins, out)


class BlockPart(NamedTuple):
    """The rows of one table in a block: one row for each id.

    policy, default_row: for an id outside [0, V), as in manifest.LookupFeature.
    per_row: K where the ids are [B, K]; 1 where they are [B], or where the part is a block of its own.
    """

    table: MappedTable
    policy: BadIdPolicy = "error"
    default_row: int = 0
    per_row: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes that the part has in each row of its block."""
        size: int = self.table.row_bytes * self.per_row
        return size


class BlockLayout(NamedTuple):
    """The places of the blocks in their buffer, for given numbers of ids. begins: first byte of each block."""

    counts: Array
    begins_array: Array
    begins: tuple[int, ...]
    num_bytes: int


class RowBlocks:
    """Writes blocks of rows, each [B, bytes], parts side by side. Concurrency: any thread.

    Args:
      blocks: for each block, its parts in order; an int is a gap of that many bytes per row, which the caller fills.
    """

    def __init__(self, blocks: Sequence[Sequence[BlockPart | int]]) -> None:
        widths = [[part if isinstance(part, int) else part.row_bytes for part in block] for block in blocks]
        self._pitches = [sum(of_block) for of_block in widths]
        # The plan holds addresses; these hold the memory.
        self._tables = [part.table for block in blocks for part in block if not isinstance(part, int)]
        plan = []
        for number, block in enumerate(blocks):
            places = [0, *accumulate(widths[number])]
            for part, place in zip(block, places, strict=False):
                if not isinstance(part, int):
                    weights = part.table.weights
                    policy = POLICIES[part.policy], part.default_row
                    where = number, place, self._pitches[number], part.per_row
                    plan.append((weights.ctypes.data, part.table.row_bytes, len(weights), *policy, *where))
        self._plan = np.array(plan, np.int64).reshape(-1, 9)

    @staticmethod
    def takes(table: MappedTable) -> bool:
        """Says whether a table's rows can be copied: they consist of whole words and have no scale."""
        return table.info.dtype in _AS_STORED and not table.row_bytes % _WORD_BYTES

    def lay_out(self, counts: Sequence[int], rows: Sequence[int]) -> BlockLayout:
        """Returns where blocks lie in their buffer.

        Args:
          counts: ids of each part in the order of the blocks, K times as many as its block has rows.
          rows: of each block.
        """
        begins, end = [], 0
        for count, pitch in zip(rows, self._pitches, strict=True):
            begins.append(end)
            end += count * pitch
            end += -end % _ALIGNED_BYTES
        return BlockLayout(np.array(counts, np.int64), np.array(begins, np.int64), tuple(begins), end)

    def write(self, ids: Sequence[Array], layout: BlockLayout) -> Array | int:
        """Returns [bytes] uint8 that hold the blocks; or the number of the part that has an id without a row.

        Args:
          ids: of each part, integers of any shape.
        """
        buffer: Array = np.empty(layout.num_bytes + _ALIGNED_BYTES, np.uint8)
        skipped = -buffer.ctypes.data % _ALIGNED_BYTES
        out = buffer[skipped : skipped + layout.num_bytes]
        if ids:
            # Flat by views: numpy's own way, axis=None, gives the interpreter's lock up for each array.
            joined = np.concatenate([part.reshape(-1) for part in ids], dtype=np.int64)
            write = _write_held if layout.num_bytes <= _HELD_BYTES else _write_released
            stopped = int(write(self._plan, joined, layout.counts, layout.begins_array, out))
            if stopped != OK:
                return stopped
        return out
