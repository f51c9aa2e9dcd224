"""Copies tables into a checkpoint: conversion to float32, rounding, mean rows, keys, and numbers that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.graphs.reduced_table import reduced
from model_export.importers.table_copy import CopiedTable, TableCopy
from model_export.importers.table_reader import Chunk, with_keys
from service.artifact.bundle import read_bundle
from tests.unit.model_export.importers.reading import matrix


@dataclass
class Given:
    """A TableReader of chunks that a test makes."""

    chunks_: Sequence[Chunk]
    num_rows: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Yields them."""
        yield from self.chunks_


def copied(
    folder: Path, chunks: Sequence[Chunk], *, keys: Any = None, progress: Any = None, **options: Any
) -> tuple[CopiedTable, np.ndarray]:
    """Copies a table into a checkpoint; returns its description and the numbers that the checkpoint has."""
    with BundleWriter(folder / "variables") as writer:
        reader = with_keys(Given(chunks), keys, {}, "table 'user': user.npy")
        table = TableCopy("user", "user.npy", **options).run(reader, writer, progress or (lambda done, total: None))
    return table, stored(folder, table.key)


def stored(folder: Path, key: str) -> np.ndarray:
    """Returns the values of a tensor in the checkpoint; those of bfloat16 as uint16."""
    entry = read_bundle(folder / "variables")[key]
    dtype = {"bfloat16": "u2"}.get(entry.dtype, entry.dtype)
    return np.memmap(entry.file, dtype, "r", entry.offset, entry.shape)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_every_float_becomes_float32(tmp_path: Path, dtype: str) -> None:
    told: list[Any] = []
    chunks = [Chunk(matrix(6, 2).astype(dtype)[:4]), Chunk(matrix(6, 2).astype(dtype)[4:])]
    table, numbers = copied(tmp_path, chunks, progress=lambda done, total: told.append((done, total)))
    np.testing.assert_array_equal(numbers, matrix(6, 2))
    assert numbers.dtype == np.float32
    assert (table.vocabulary_size, table.embedding_dim, table.keys) == (6, 2, None)
    assert told == [(4, None), (6, None)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int4"])
def test_fewer_bits_are_those_of_an_export(tmp_path: Path, dtype: Any) -> None:
    rows = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    table, numbers = copied(tmp_path, [Chunk(rows[:3]), Chunk(rows[3:])], dtype=dtype)
    whole = reduced("user", dtype, 7, lambda start, stop: rows[start:stop])
    np.testing.assert_array_equal(numbers, whole.numbers)
    assert table.rounding == whole.rounding.to_json()
    assert (table.vocabulary_size, table.embedding_dim) == (7, 5)
    if whole.scales is not None:
        assert table.scale_key is not None
        np.testing.assert_array_equal(stored(tmp_path, table.scale_key), whole.scales)


def test_the_mean_is_one_more_row(tmp_path: Path) -> None:
    rows = np.array([[1, 2], [3, 4], [5, 12]], np.float64)
    table, numbers = copied(tmp_path, [Chunk(rows[:1]), Chunk(rows[1:])], keys=["a", "b", "c"], adds_mean=True)
    assert numbers.tolist() == [[1, 2], [3, 4], [5, 12], [3, 6]]
    assert (table.mean_row, table.vocabulary_size, table.keys) == (3, 4, ["a", "b", "c"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(tmp_path: Path, bad: float) -> None:
    rows = matrix(4, 2)
    rows[2, 1] = rows[3, 0] = bad
    chunks = [Chunk(rows[:1]), Chunk(rows[1:])]
    with pytest.raises(ExportError, match=f"table 'user': row 2 of user.npy holds {bad}; .*--allow_nonfinite"):
        copied(tmp_path / "a", chunks)
    table, numbers = copied(tmp_path / "b", chunks, allow_nonfinite=True)
    assert table.nonfinite == 2
    np.testing.assert_array_equal(numbers, rows)


def test_numbers_that_float32_can_not_hold(tmp_path: Path) -> None:
    rows = np.array([[0, 0], [0, 1e300]])
    for allowed in (False, True):
        with pytest.raises(ExportError, match=r"row 1 of user.npy holds 1e\+300, float32 ends at 3.4e38"):
            copied(tmp_path / str(allowed), [Chunk(rows)], allow_nonfinite=allowed)
    # Each number fits into float32, although their sum does not.
    huge = np.full((4, 2), 3e38, np.float32)
    np.testing.assert_array_equal(copied(tmp_path / "huge", [Chunk(huge)])[1], huge)


@pytest.mark.parametrize(
    ("chunks", "keys", "message"),
    [
        ([], None, "user.npy holds no rows of numbers"),
        ([Chunk(np.zeros((3, 0)))], None, "holds no rows of numbers"),
        (
            [Chunk(matrix(2, 2)), Chunk(matrix(2, 3))],
            None,
            "row 2 of user.npy has 3 numbers, the rows before it have 2",
        ),
        ([Chunk(matrix(2, 2))], ["a"], "has 2 rows and 1 keys"),
        ([Chunk(matrix(2, 2), ["a", "b"])], ["a", "b"], "has keys of its own; leave --keys out"),
    ],
)
def test_tables_at_fault(tmp_path: Path, chunks: Any, keys: Any, message: str) -> None:
    with pytest.raises(ExportError, match=f"table 'user'.*{message}"):
        copied(tmp_path, chunks, keys=keys)
    assert not (tmp_path / "variables.index").exists()


def test_what_a_library_says_is_told_with_the_table(tmp_path: Path) -> None:
    class Failing(Given):
        """A reader whose library fails."""

        def chunks(self) -> Iterator[Chunk]:
            yield Chunk(matrix(1, 2))
            raise ValueError("no such codec")

    with (
        BundleWriter(tmp_path / "v") as writer,
        pytest.raises(ExportError, match="cannot read user.npy: no such codec"),
    ):
        TableCopy("user", "user.npy").run(Failing([]), writer, lambda done, total: None)
