"""The oracle on a table small enough to do in one's head."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.export.oracle import combined, predicted
from service.core.manifest import Combiner, MeanDivisor
from service.core.types import RaggedIds

TABLE = np.array([[100, 100], [1, 2], [3, 6], [-2, 0]], np.float32)
# Rows: ids 1 and 2, none, id 3 twice, none.
IDS = RaggedIds(np.array([1, 2, 3, 3]), np.array([0, 2, 2, 4, 4]))
WEIGHTS = np.array([1, 3, 0.25, 0.25], np.float32)


@pytest.mark.parametrize(
    ("combiner", "divisor", "weights", "expected"),
    [
        ("sum", "sum_weights", None, [[4, 8], [0, 0], [-4, 0], [0, 0]]),
        ("mean", "sum_weights", None, [[2, 4], [0, 0], [-2, 0], [0, 0]]),
        ("sqrtn", "sum_weights", None, [[4 / 2**0.5, 8 / 2**0.5], [0, 0], [-4 / 2**0.5, 0], [0, 0]]),
        ("sum", "sum_weights", WEIGHTS, [[10, 20], [0, 0], [-1, 0], [0, 0]]),
        ("mean", "sum_weights", WEIGHTS, [[2.5, 5], [0, 0], [-2, 0], [0, 0]]),
        ("mean", "at_least_one", WEIGHTS, [[2.5, 5], [0, 0], [-1, 0], [0, 0]]),
        ("mean", "sum_weights", 0 * WEIGHTS, [[0, 0]] * 4),
        ("mean", "at_least_one", 0 * WEIGHTS, [[0, 0]] * 4),
    ],
)
def test_combined(
    combiner: Combiner, divisor: MeanDivisor, weights: np.ndarray | None, expected: list[list[float]]
) -> None:
    got = combined(TABLE, IDS._replace(weights=weights), combiner, divisor)
    np.testing.assert_allclose(got, expected)


def test_no_rows_give_no_rows() -> None:
    none = RaggedIds(np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert combined(TABLE, none, "mean", "sum_weights").shape == (0, 2)


def test_predicted_adds_up_and_is_clipped() -> None:
    vectors = {name: np.ones((2, 2)) for name in ("user_id", "film_id", "recent_films")}
    vectors |= {name: np.zeros((2, 1)) for name in ("genres", "occupation")}
    vectors["user_id"] = np.array([[0.25, 2.0], [-9.0, 2.0]])
    tower = {
        "hidden/0/kernel": np.zeros((8, 1)),
        "hidden/0/bias": np.array([2.0]),
        "output/kernel": np.array([[0.5]]),
        "output/bias": np.array([-1.5]),
        "taste": np.array([[0.5], [-1.0]]),
        "mean_rating": np.array(1.5),
        "rating_range": np.array([1.0, 5.0]),
    }
    # 1.5 mean + 0.25 + 1 biases + (2 - 0.5) * 1 taste + 2 * 0.5 - 1.5 layers
    np.testing.assert_allclose(predicted(tower, vectors), [3.75, 1.0])
