"""Declares the tables and features of the rating model, and the settings of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from model_export.distribution.cluster import DISTRIBUTIONS, Distribution
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from movielens.examples import HeldOut
from movielens.ratings import RatingData

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


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a training run; settings and data together decide the trained model.

    table_learning_rate, dense_learning_rate: Adagrad of the tables, Adam of the tower.
    dropout: share of hidden units dropped while training.
    unknown_rate: share of ids replaced by row 0 while training, so that row 0 is a useful vector for unknown ids.
    held_out: "test" for the reported errors; "validation" to choose settings without using the test part.
    distribution: how several processes train; "none" is one process.

    The defaults, the number of epochs included, were chosen on MovieLens 100K with held_out="validation": RMSE 0.948
    there, user and film biases 0.976. A penalty on the vectors did not help, so there is none.
    """

    epochs: int = 16
    batch_size: int = 512
    table_learning_rate: float = 0.3
    dense_learning_rate: float = 0.001
    dropout: float = 0.65
    unknown_rate: float = 0.02
    hidden: tuple[int, ...] = (128, 64)
    seed: int = 1
    held_out: HeldOut = "test"
    distribution: Distribution = "none"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs is {self.epochs} and batch_size {self.batch_size}; both must be at least 1")
        if not 0 <= self.unknown_rate < 1 or not 0 <= self.dropout < 1:
            raise ValueError("unknown_rate and dropout must lie in [0, 1)")
        if self.held_out not in get_args(HeldOut):
            raise ValueError(f"held_out is {self.held_out!r}, expected one of {get_args(HeldOut)}")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution is {self.distribution!r}, expected one of {DISTRIBUTIONS}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TrainConfig:
        return TrainConfig(**{**data, "hidden": tuple(data["hidden"])})
