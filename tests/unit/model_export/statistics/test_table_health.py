"""Compares the report's figures on the health of tables with numpy's, computed on whole tables at once."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from model_export.statistics import table_health as module
from model_export.statistics.table_health import Rows, row_chunks, table_health


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a chunk seven rows of eight numbers, so that small tables have many chunks."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 7 * 8 * 8)


def sick_table(dtype: str) -> np.ndarray:
    """Returns a table of 100 rows with every defect that a report finds, some on both sides of a chunk's edge."""
    table = np.random.default_rng(1).normal(size=(100, 8)).astype(dtype)
    table[[6, 7, 50]] = 0
    table[13, 2] = np.nan
    table[14, 3:5] = np.nan
    table[20, 0] = np.inf
    table[21] = [np.nan, -np.inf, 1, 1, 1, 1, 1, 1]
    table[30] = 1e-3
    table[60] = table[90] = table[3]
    return table


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_every_figure_is_numpys_of_the_whole_table(dtype: str, small_chunks: None) -> None:
    table = sick_table(dtype)
    health = table_health(table)
    finite = np.isfinite(table).all(axis=1)
    norms = np.linalg.norm(table[finite].astype(np.float64), axis=1)
    assert (health.rows, health.dim) == (100, 8)
    assert health.norms is not None and health.histogram is not None
    np.testing.assert_allclose(
        [health.norms.minimum, health.norms.mean, health.norms.maximum], [norms.min(), norms.mean(), norms.max()]
    )
    for p, value in health.norms.percentiles:
        assert value == pytest.approx(np.percentile(norms, p))
    assert health.norms.median == pytest.approx(np.median(norms))
    assert (health.nan, health.nan_values) == (Rows(3, (13, 14, 21)), 4)
    assert (health.inf, health.inf_values) == (Rows(2, (20, 21)), 2)
    assert health.dead == Rows(3, (6, 7, 50))
    assert health.near_zero == Rows(1, (30,))
    assert health.duplicates == Rows(2, (60, 90))
    assert not health.is_finite


def test_a_healthy_table_has_nothing_to_show() -> None:
    health = table_health(np.random.default_rng(2).normal(size=(50, 3)).astype(np.float32))
    assert health.is_finite
    assert health.nan == health.inf == health.dead == health.near_zero == health.duplicates == Rows()


def test_the_histogram_is_numpys(small_chunks: None) -> None:
    table = np.random.default_rng(3).normal(size=(500, 8)).astype(np.float32)
    histogram = table_health(table).histogram
    assert histogram is not None
    norms = np.linalg.norm(table.astype(np.float64), axis=1)
    counts, edges = np.histogram(norms, 16)  # Rice: 2 * 500 ** (1/3) is 15.9
    assert histogram.counts == tuple(counts)
    np.testing.assert_allclose(histogram.edges, edges)
    assert histogram.above == 0


def test_a_few_giants_do_not_squeeze_all_others_into_one_bin() -> None:
    table = np.random.default_rng(4).uniform(1, 2, size=(1000, 1)).astype(np.float32)
    table[::250] = 1e6
    histogram = table_health(table).histogram
    assert histogram is not None
    assert histogram.above == 4 and sum(histogram.counts) == 996
    assert histogram.edges[-1] < 3 and max(histogram.counts) < 200


def test_equal_norms_are_one_bin() -> None:
    histogram = table_health(np.eye(4, dtype=np.float32)).histogram
    assert histogram is not None and (histogram.edges, histogram.counts) == ((1.0, 1.0), (4,))


def test_without_a_finite_row_there_are_no_norms() -> None:
    health = table_health(np.full((3, 2), np.nan, np.float32))
    assert (health.norms, health.histogram, health.nan_values) == (None, None, 6)


def test_more_than_ten_rows_are_counted_and_the_first_ten_named(small_chunks: None) -> None:
    assert table_health(np.zeros((40, 8), np.float32)).dead == Rows(40, tuple(range(10)))


def test_numbers_too_large_to_square_are_finite_all_the_same() -> None:
    health = table_health(np.array([[1e200, 1e200], [1.0, 0.0]]))
    assert health.is_finite and health.norms is not None and health.norms.maximum == pytest.approx(2**0.5 * 1e200)


def test_numbers_too_small_to_square_are_not_dead() -> None:
    health = table_health(np.array([[1e-200, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    assert health.dead == Rows(1, (1,))


def test_equal_hashes_of_different_rows_are_no_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_row_hashes", lambda chunk, factors: np.zeros(len(chunk), np.uint64))
    table = np.array([[1, 2], [3, 4], [1, 2]], np.float32)
    assert table_health(table).duplicates == Rows(1, (2,))


def test_huge_tables_are_not_searched_for_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS_FOR_DUPLICATES", 2)
    assert table_health(np.ones((3, 2), np.float32)).duplicates is None


def test_a_mapped_unaligned_table_is_read_as_it_lies(tmp_path: Path, small_chunks: None) -> None:
    table = sick_table("<f4")
    (tmp_path / "shard").write_bytes(b"xyz" + table.tobytes())
    mapped = np.memmap(tmp_path / "shard", "<f4", "r", 3, (100, 8))
    assert table_health(mapped) == table_health(table)


def test_progress_ends_at_the_last_row(small_chunks: None) -> None:
    told: list[tuple[int, int]] = []
    table_health(np.ones((20, 8), np.float32), progress=lambda done, rows: told.append((done, rows)))
    assert told == [(7, 20), (14, 20), (20, 20)]


def test_chunks_cover_every_row_once() -> None:
    assert list(row_chunks(3, 1 << 24)) == [(0, 1), (1, 2), (2, 3)]
    assert list(row_chunks(5, 2)) == [(0, 5)]


def test_the_example_holds() -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
