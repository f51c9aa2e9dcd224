"""Blocks of rows have the bytes of numpy's indexing, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from service.artifact.manifest import BadIdPolicy
from service.tables.row_blocks import BlockPart, RowBlocks
from service.tables.table import MappedTable
from service.types import Array, TableInfo


def table(rows: int, dim: int, dtype: str = "float32") -> MappedTable:
    """Returns a table in which all numbers differ, as far as its dtype allows."""
    stored = "uint16" if dtype == "bfloat16" else dtype
    numbers = np.arange(rows * dim).reshape(rows, dim).astype(stored)
    return MappedTable(TableInfo("t", rows, dim, dtype, numbers.nbytes, ()), numbers)


def blocks(made: RowBlocks, ids: list[Array], rows: list[int]) -> list[Array]:
    """Writes blocks; returns the bytes from each block's begin up to the next one's."""
    layout = made.lay_out(rows)
    out = made.write(ids, layout)
    assert not isinstance(out, int)
    assert (not out.size or out.ctypes.data % 64 == 0) and all(begin % 64 == 0 for begin in layout.begins)
    ends = [*layout.begins[1:], layout.num_bytes]
    return [out[begin:end] for begin, end in zip(layout.begins, ends, strict=True)]


@pytest.mark.parametrize("rows", [0, 1, 7, 40, 3000])
def test_parts_lie_side_by_side(rows: int) -> None:
    a, b, c = table(50, 3), table(9, 40), table(20, 2)
    random = np.random.default_rng(rows)
    ids = [
        random.integers(0, 50, rows).astype(np.int32),
        random.integers(0, 9, (rows, 1)),
        random.integers(0, 20, (2 * rows, 2))[::2],
    ]
    made = RowBlocks([[BlockPart(a), BlockPart(b)], [BlockPart(c, per_row=2)]])
    first, second = blocks(made, ids, [rows, rows])
    wanted = np.concatenate([a.weights[ids[0]], b.weights[ids[1][:, 0]]], 1)
    np.testing.assert_array_equal(first[: wanted.nbytes].view(np.float32).reshape(rows, 43), wanted)
    pairs = c.weights[ids[2]]
    np.testing.assert_array_equal(second[: pairs.nbytes].view(np.float32).reshape(rows, 2, 2), pairs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_rows_keep_their_stored_bits(dtype: str) -> None:
    stored = table(10, 6, dtype)
    ids = np.array([9, 0, 3])
    (found,) = blocks(RowBlocks([[BlockPart(stored)]]), [ids], [3])
    wanted = stored.weights[ids]
    np.testing.assert_array_equal(found[: wanted.nbytes].view(wanted.dtype).reshape(3, 6), wanted)


def test_places_that_the_caller_fills_are_left_free() -> None:
    numbers = table(10, 2)
    made = RowBlocks([[8, BlockPart(numbers), 4]])
    (found,) = blocks(made, [np.array([1, 4])], [2])
    assert found[:40].view(np.float32).reshape(2, 5)[:, 2:4].tolist() == [[2, 3], [8, 9]]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("drop", [[4, 5], [0, 0], [0, 0]]),
        ("default_row", [[4, 5], [2, 3], [2, 3]]),
        ("clamp", [[4, 5], [0, 1], [18, 19]]),
    ],
)
def test_ids_outside_the_table(policy: BadIdPolicy, wanted: list[list[float]]) -> None:
    made = RowBlocks([[BlockPart(table(10, 2), policy, default_row=1)]])
    (found,) = blocks(made, [np.array([2, -1, 10])], [3])
    assert found[:24].view(np.float32).reshape(3, 2).tolist() == wanted


@pytest.mark.parametrize(("policy", "bad_id"), [("error", 10), ("error", -1), ("drop_negative", 10)])
def test_the_part_with_a_refused_id_is_named(policy: BadIdPolicy, bad_id: int) -> None:
    made = RowBlocks([[BlockPart(table(20, 2))], [BlockPart(table(10, 2), policy), BlockPart(table(20, 2))]])
    ids = [np.array([15]), np.array([bad_id]), np.array([25])]
    assert made.write(ids, made.lay_out([1, 1])) == 1


def test_rows_that_have_a_scale_are_not_taken() -> None:
    assert RowBlocks.takes(table(4, 3, "float16"))
    scales = np.ones(4, np.float32)
    assert not RowBlocks.takes(MappedTable(TableInfo("t", 4, 4, "int8", 16, ()), np.zeros((4, 4), np.int8), scales))
