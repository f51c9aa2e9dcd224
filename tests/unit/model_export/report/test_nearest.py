"""The nearest rows in a table's report are those of a plain search in float64."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.report.build import nearest_rows, searched_ids
from model_export.report.table_files import SlicedRows


def plain(rows: np.ndarray, row: int, k: int) -> list[int]:
    """Returns the ids of the k rows nearest to a row; of equal cosines the smaller id comes first."""
    wide = rows.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    cosines = wide @ wide[row] / np.maximum(lengths * lengths[row], 1e-300)
    cosines[row] = -np.inf
    return np.argsort(-cosines, kind="stable")[: min(k, len(rows) - 1)].tolist()


@pytest.mark.parametrize(("num_rows", "k"), [(2, 1), (7, 10), (33, 4), (5000, 10)])
def test_the_nearest_rows_are_those_of_a_plain_search(num_rows: int, k: int) -> None:
    rows = np.random.default_rng(num_rows).standard_normal((num_rows, 6)).astype(np.float32)
    ids = np.unique(np.linspace(0, num_rows - 1, 20).astype(np.int64))
    found = nearest_rows(rows, ids, k)
    assert list(found) == ids.tolist()
    for row, near in found.items():
        assert [one for one, _ in near] == plain(rows, row, k)
        for one, cosine in near:
            true = np.dot(rows[row], rows[one]) / np.linalg.norm(rows[row]) / np.linalg.norm(rows[one])
            assert cosine == pytest.approx(true, abs=1e-5)


def test_of_equal_rows_the_smaller_id_is_first_across_blocks() -> None:
    rows = np.tile(np.array([[1, 0]], np.float32), (3000, 1))
    assert [row for row, _ in nearest_rows(rows, np.array([40]), 3)[40]] == [0, 1, 2]


def test_rows_without_a_direction_have_no_neighbours() -> None:
    rows = np.array([[1, 0], [0, 0], [np.nan, 1], [np.inf, 1], [3e38, 3e38]], np.float32)
    found = nearest_rows(rows, np.arange(5), 5)
    # The length of row 4 is beyond float32, but its cosine is computed.
    assert {row: [near for near, _ in nears] for row, nears in found.items()} == {0: [4, 1], 4: [0, 1]}
    assert found[0][0][1] == pytest.approx(0.5**0.5)


def test_a_table_in_parts_is_searched_as_one() -> None:
    rows = np.random.default_rng(1).standard_normal((90, 3)).astype(np.float32)
    parts = SlicedRows([rows[:50], rows[50:]])
    assert nearest_rows(parts, np.array([10, 70]), 5) == nearest_rows(rows, np.array([10, 70]), 5)


def test_of_a_large_table_some_rows_are_searched() -> None:
    ids = np.arange(2000) * 10
    assert searched_ids(ids, (100_000, 64)) is ids
    some = searched_ids(ids, (1_000_000, 64))
    assert len(some) == 268 and set(some) <= set(ids) and (some[0], some[-1]) == (0, 19_990)
    assert len(searched_ids(ids, (1_000_000_000, 64))) == 100
