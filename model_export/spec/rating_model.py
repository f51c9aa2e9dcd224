"""The rating model's declaration: which tables and features a data set of ratings gives."""

from __future__ import annotations

from model_export.datasets.ratings import RatingData
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec

RECENT_FILMS_LIMIT = 10
_ID_DIM = 32
_SIDE_DIM = 8


def rating_model_spec(data: RatingData) -> ModelSpec:
    """Returns the spec of a data set: four tables, five features, recent_films sharing the film table.

    user and film ids are rows themselves. Column 0 of both tables is read as a bias by the tower.
    """
    most_genres = max((len(genres) for genres in data.film_genres), default=1)
    return ModelSpec(
        tables=(
            TableSpec("user", data.num_users + 1, _ID_DIM),
            TableSpec("film", data.num_films + 1, _ID_DIM),
            _string_table("genre", data.genre_vocabulary),
            _string_table("occupation", data.occupation_vocabulary),
        ),
        features=(
            FeatureSpec("user_id", "user"),
            FeatureSpec("film_id", "film"),
            FeatureSpec("occupation", "occupation"),
            # Room to spare, so that a film with one more genre is not refused by the padded lookup.
            FeatureSpec("genres", "genre", is_ragged=True, max_ids_per_row=max(8, most_genres)),
            FeatureSpec("recent_films", "film", is_ragged=True, max_ids_per_row=RECENT_FILMS_LIMIT),
        ),
    )


def _string_table(name: str, vocabulary: tuple[str, ...]) -> TableSpec:
    return TableSpec(name, len(vocabulary) + 1, _SIDE_DIM, vocabulary=vocabulary)
