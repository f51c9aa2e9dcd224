"""Checks a reduced table's losses: errors by hand, cosines with numpy, neighbours by comparing every pair of rows."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.compaction.reduction import MOST_QUERIES, Losses, neighbours_kept, report_lines
from model_export.graphs.reduced_table import widened
from service.artifact.stored_tables import rounded


def test_errors_by_hand() -> None:
    losses = Losses("int4")
    losses.add(np.array([[1, -2], [0, 0]], np.float32), np.array([[1.5, -2], [0, 0]], np.float32))
    losses.add(np.array([[4, 0]], np.float32), np.array([[3, 0]], np.float32))
    assert losses.to_json() == {
        "dtype": "int4",
        **{"largest_error": 1, "mean_error": 1.5 / 6},
        # The relative errors of 1, -2 and 4 are 1/2, 0 and 1/4; zeros have none.
        **{"largest_relative_error": 0.5, "mean_relative_error": 0.25},
        # The cosine of [1, -2] and [1.5, -2] is 5.5 / sqrt(5 * 6.25), that of [4, 0] and [3, 0] is 1; rows of zeros do
        # not count.
        "mean_cosine": pytest.approx((5.5 / np.sqrt(31.25) + 1) / 2),
    }


def test_rows_with_nan_are_left_out_and_a_row_that_became_zeros_is_not() -> None:
    losses = Losses("int4")
    losses.add(np.array([[np.nan, 1], [np.inf, 1]], np.float32), np.array([[np.nan, 1], [np.inf, 1]], np.float32))
    assert list(losses.to_json().values()) == ["int4", 0, 0, 0, 0, 1]
    losses.add(np.array([[1, 1]], np.float32), np.zeros((1, 2), np.float32))
    assert losses.to_json()["mean_cosine"] == 0


def test_neighbours_are_those_of_all_pairs() -> None:
    random = np.random.default_rng(4)
    trained = random.normal(size=(350, 6)).astype(np.float32)
    numbers, scales = rounded(trained, "int4")
    stored = widened(numbers, "int4", scales, embedding_dim=6)
    told = neighbours_kept(trained, stored)
    assert (told["queries"], told["candidates"], told["neighbours"]) == (350, 350, 10)
    near = []
    for rows in (trained.astype(np.float64), stored.astype(np.float64)):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = unit @ unit.T
        np.fill_diagonal(cosines, -2)
        near.append([set(row.tolist()) for row in np.argsort(-cosines, axis=1)[:, :10]])
    kept = sum(len(one & other) for one, other in zip(*near, strict=True)) / 3500
    # The tolerance is for rows with equal cosines in float32, of which either may count as the tenth.
    assert told["recall_at_10"] == pytest.approx(kept, abs=0.002) and 0.5 < kept < 0.99
    assert neighbours_kept(trained, trained)["recall_at_10"] == 1


def test_equal_rows_do_not_count_against_a_table() -> None:
    rows = np.repeat(np.eye(3, dtype=np.float32), 40, axis=0)
    assert neighbours_kept(rows, rows[::-1].copy()[::-1])["recall_at_10"] == 1


def test_no_neighbours_where_there_is_one_row() -> None:
    one = np.ones((1, 2), np.float32)
    told = neighbours_kept(one, one)
    assert told == {"recall_at_10": None, "queries": 1, "candidates": 1, "rows": 1, "neighbours": 0}
    bounds = {"dtype": "int8", "error_bound": 0.1}
    assert not any("recall" in line for line in report_lines("t", Losses("int8").to_json() | told | bounds))


def test_queries_are_bounded() -> None:
    rows = np.random.default_rng(0).normal(size=(MOST_QUERIES + 5, 2)).astype(np.float32)
    told, seen = neighbours_kept(rows, rows), list[tuple[int, int]]()
    assert told["queries"] == MOST_QUERIES and told["candidates"] == MOST_QUERIES + 5
    neighbours_kept(rows, rows, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (MOST_QUERIES, MOST_QUERIES)
