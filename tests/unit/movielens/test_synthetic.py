"""The generated data set is the same every time, and contains the awkward cases."""

from __future__ import annotations

import numpy as np

from movielens.ratings import UNKNOWN_GENRE, RatingData, synthetic_ratings


def test_it_is_the_same_every_time() -> None:
    assert synthetic_ratings().ratings_csv() == synthetic_ratings().ratings_csv()
    assert synthetic_ratings().films == synthetic_ratings().films


def test_another_seed_gives_other_ratings() -> None:
    assert synthetic_ratings(seed=8).sha256 != synthetic_ratings().sha256


def test_it_holds_shared_timestamps_and_a_film_without_a_known_genre(ratings: RatingData) -> None:
    pairs = list(zip(ratings.user_id.tolist(), ratings.timestamp.tolist(), strict=True))
    assert len(set(pairs)) < len(pairs)
    assert (UNKNOWN_GENRE,) in ratings.film_genres
    assert UNKNOWN_GENRE not in ratings.genre_vocabulary


def test_no_user_rates_a_film_twice(ratings: RatingData) -> None:
    pairs = np.stack([ratings.user_id, ratings.film_id], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert set(ratings.rating.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
