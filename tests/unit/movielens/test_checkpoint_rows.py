"""Rows of a checkpoint's table are the same from shards as from a whole table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from movielens.checkpoint_rows import CheckpointRows
from service.artifact.bundle import BundleEntry, BundleSlice, read_bundle
from tests.toy_model import write_bundle

TABLE = np.arange(21, dtype=np.float32).reshape(7, 3)


def sharded(folder: Path, ends: list[int]) -> BundleEntry:
    """Writes the table in parts that end at these rows; returns an entry with the parts as its slices."""
    folder.mkdir(exist_ok=True)
    starts = [0, *ends[:-1]]
    write_bundle(folder / "parts", {f"part{i}": TABLE[a:b] for i, (a, b) in enumerate(zip(starts, ends, strict=True))})
    parts = read_bundle(folder / "parts")
    slices = tuple(BundleSlice((start, 0), parts[f"part{i}"]) for i, start in enumerate(starts))
    return BundleEntry("float32", TABLE.shape, slices[0].entry.file, 0, 0, 0, slices)


@pytest.mark.parametrize("ends", [[7], [3, 7], [1, 2, 6, 7]])
def test_rows_of_shards_are_those_of_the_table(tmp_path: Path, ends: list[int]) -> None:
    rows = CheckpointRows("t", sharded(tmp_path, ends))
    assert rows.shape == (7, 3)
    for start in range(8):
        for stop in range(start, 8):
            np.testing.assert_array_equal(rows.read(start, stop), TABLE[start:stop])
    np.testing.assert_array_equal(rows.gather(np.array([6, 0, 0, 3])), TABLE[[6, 0, 0, 3]])
    np.testing.assert_array_equal(np.concatenate(list(rows.chunks())), TABLE)
    np.testing.assert_array_equal(
        np.concatenate(list(CheckpointRows("t", sharded(tmp_path / "2", ends), 4).chunks())), TABLE[:4]
    )


def test_shards_that_leave_a_gap_are_refused(tmp_path: Path) -> None:
    entry = sharded(tmp_path, [3, 5, 7])
    with pytest.raises(ExportError, match="each of its rows once"):
        CheckpointRows("t", dataclasses.replace(entry, slices=(entry.slices[0], entry.slices[2])))
    with pytest.raises(ExportError, match="each of its rows once"):
        CheckpointRows("t", dataclasses.replace(entry, slices=entry.slices[:2]))


def test_a_shard_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    rows = CheckpointRows("t", sharded(tmp_path, [3, 7]))
    file = next(tmp_path.glob("parts.data*"))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ExportError, match="ends before a table does"):
        rows.read(3, 7)
