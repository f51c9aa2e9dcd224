"""A table's projection to two dimensions agrees with numpy's eigenvectors, and with a case by hand."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from model_export.report import document as module
from model_export.report.document import label_agreement, project, sample_ids


def test_points_are_the_centred_rows_on_the_first_two_eigenvectors() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 6)) * [5, 1, 3, 0.5, 0.2, 0.1]
    found = project(rows, np.arange(200))
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    for axis, column in enumerate((-1, -2)):
        vector = vectors[:, column]
        vector = vector * np.sign(vector[np.abs(vector).argmax()])
        np.testing.assert_allclose(np.array(found.points)[:, axis], centred @ vector, atol=1e-9)
        assert found.explained[axis] == pytest.approx(values[column] / values.sum())


def test_the_sign_does_not_hang_on_the_order_of_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 4))
    forward, backward = project(rows, np.arange(50)), project(rows[::-1], np.arange(50)[::-1])
    np.testing.assert_allclose(forward.points, backward.points[::-1], atol=1e-9)


def test_rows_that_are_not_finite_are_left_out() -> None:
    rows = np.array([[0, 0], [np.nan, 1], [1, 1], [np.inf, 0]], np.float32)
    assert project(rows, np.array([4, 5, 6, 7])).ids == (4, 6)


@pytest.mark.parametrize("rows", [np.ones((1, 3)), np.ones((4, 3)), np.zeros((0, 3))])
def test_rows_that_do_not_vary_lie_at_zero(rows: np.ndarray) -> None:
    found = project(rows, np.arange(len(rows)))
    assert found.points == ((0.0, 0.0),) * len(rows) and found.explained == (0.0, 0.0)


def test_one_dimension_leaves_the_second_axis_at_zero() -> None:
    assert project(np.array([[1.0], [3.0]]), np.arange(2)).points == ((-1.0, 0.0), (1.0, 0.0))


def test_a_sample_is_of_distinct_ids_ascending_and_always_the_same() -> None:
    ids = sample_ids(10_000, seed=3, limit=50)
    assert len(set(ids.tolist())) == 50 and (np.diff(ids) > 0).all() and ids.max() < 10_000
    np.testing.assert_array_equal(ids, sample_ids(10_000, seed=3, limit=50))
    assert (ids != sample_ids(10_000, seed=4, limit=50)).any()
    np.testing.assert_array_equal(sample_ids(3, seed=3), [0, 1, 2])


def test_a_sample_of_candidates_holds_nothing_else() -> None:
    candidates = np.arange(5, 1000, 5)
    assert set(sample_ids(1000, seed=0, candidates=candidates, limit=20).tolist()) <= set(candidates.tolist())
    np.testing.assert_array_equal(sample_ids(1000, seed=0, candidates=np.array([7, 2])), [2, 7])


def test_agreement_of_neighbours_by_hand() -> None:
    # Rows at 0, 1, 90, 91, 92.5 and 45 degrees. The last has no label, and the one at 91 degrees another label than its
    # neighbours, so only the first two rows have a nearest row of their own label.
    angles = np.radians([0, 1, 90, 91, 92.5, 45])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    share, chance = label_agreement(rows, ["a", "a", "b", "a", "b", None]) or (0, 0)
    assert share == pytest.approx(2 / 5)
    # By chance, a row and another one have the same label with this probability: 3 rows have label a, 2 have b, so (3 *
    # 2 + 2 * 1) / (5 * 4).
    assert chance == pytest.approx(8 / 20)


def test_agreement_needs_two_labelled_rows_and_bears_zero_rows() -> None:
    assert label_agreement(np.ones((2, 2)), ["a", None]) is None
    assert label_agreement(np.zeros((2, 2)), ["a", "a"]) == (1.0, 1.0)


def test_the_example_holds() -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
