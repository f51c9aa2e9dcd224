"""The spec of the rating model fits the ratings, and survives JSON."""

from __future__ import annotations

import json

from model_export.spec.features import ModelSpec
from movielens.rating_model import rating_model_spec
from movielens.ratings import RatingData


def test_a_spec_survives_json(ratings: RatingData) -> None:
    spec = rating_model_spec(ratings)
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_recent_films_share_the_film_table(ratings: RatingData) -> None:
    spec = rating_model_spec(ratings)
    assert spec.table_of("recent_films") is spec.table_of("film_id")
    assert spec.table_of("film_id").vocabulary_size == max(ratings.films) + 1
    assert spec.feature("genres").max_ids_per_row >= max(len(genres) for genres in ratings.film_genres)
