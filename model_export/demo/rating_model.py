"""Declares the tables and features of the rating model for a data set of ratings."""

from __future__ import annotations

from model_export.demo.ratings import RatingData
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec

RECENT_FILMS_LIMIT = 10
_ID_DIM = 32
_SIDE_DIM = 8


def rating_model_spec(data: RatingData) -> ModelSpec:
    """Returns the rating model's spec: four tables, five features; film_id and recent_films share the film table.

    User and film ids are row numbers. The tower reads column 0 of both tables as a bias.
    """
    most_genres = max((len(genres) for genres in data.film_genres), default=1)
    return ModelSpec(
        tables=(
            TableSpec("user", data.num_users + 1, _ID_DIM),
            TableSpec("film", data.num_films + 1, _ID_DIM),
            TableSpec("genre", len(data.genre_vocabulary) + 1, _SIDE_DIM),
            TableSpec("occupation", len(data.occupation_vocabulary) + 1, _SIDE_DIM),
        ),
        features=(
            FeatureSpec("user_id", "user"),
            FeatureSpec("film_id", "film"),
            FeatureSpec("occupation", "occupation", vocabulary=_words(data.occupation_vocabulary), sends_rows=True),
            # max_ids_per_row is at least 8, even if no film has so many genres, so that the padded lookup does not
            # refuse a new film with one genre more.
            FeatureSpec(
                "genres",
                "genre",
                is_ragged=True,
                max_ids_per_row=max(8, most_genres),
                vocabulary=_words(data.genre_vocabulary),
                sends_rows=True,
            ),
            FeatureSpec("recent_films", "film", is_ragged=True, max_ids_per_row=RECENT_FILMS_LIMIT),
        ),
    )


def _words(vocabulary: tuple[str, ...]) -> VocabularySpec:
    # Row 0 of the table that the words read is for words outside the vocabulary.
    return VocabularySpec(vocabulary, first_id=1, oov_id=0)
