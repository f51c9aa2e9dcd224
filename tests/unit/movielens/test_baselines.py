"""The demo's baselines are computed on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from movielens.examples import Examples, baseline_rmse, build_examples, rmse, split
from movielens.rating_model import rating_model_spec
from movielens.ratings import RatingData


def _examples(rows: list[tuple[int, int, float]]) -> Examples:
    user, film, rating = zip(*rows, strict=True)
    return Examples({"user_id": np.array(user), "film_id": np.array(film)}, {}, np.array(rating, np.float32))


def test_rmse() -> None:
    assert rmse(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == pytest.approx(2**0.5)


def test_the_global_mean_is_that_of_the_training_part() -> None:
    train, held_out = _examples([(1, 1, 1.0), (1, 2, 3.0)]), _examples([(1, 1, 5.0)])
    assert baseline_rmse(train, held_out)["global_mean"] == pytest.approx(3.0)


def test_strangers_get_the_mean() -> None:
    train, held_out = _examples([(1, 1, 1.0), (1, 2, 3.0)]), _examples([(7, 9, 2.0)])
    assert baseline_rmse(train, held_out)["user_film_bias"] == pytest.approx(0.0)


def test_biases_are_shrunk_means() -> None:
    # The mean is 3. Film 1 is 1 above it in 5 ratings, film 2 is 1 below; ridge 5 halves such biases of 5 ratings.
    train = _examples([(u, 1, 4.0) for u in range(1, 6)] + [(u, 2, 2.0) for u in range(1, 6)])
    assert baseline_rmse(train, _examples([(1, 1, 3.5)]))["user_film_bias"] == pytest.approx(0.0)


def test_biases_beat_the_mean_where_there_are_biases(ratings: RatingData) -> None:
    train, held_out = split(build_examples(ratings, rating_model_spec(ratings)), ratings, "test")
    baselines = baseline_rmse(train, held_out)
    assert baselines["user_film_bias"] < baselines["global_mean"]
