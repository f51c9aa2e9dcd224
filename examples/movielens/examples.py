"""Ratings as training examples: ids, ragged features, the split by time, and baselines that a model has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from model_export.spec.features import ModelSpec
from movielens.ratings import RatingData
from service.types import Array, RaggedIds

HeldOut = Literal["test", "validation"]
_TEST_SHARE = 5  # the test part holds the latest fifth of each user's ratings
_VALIDATION_SHARE = 10  # the validation part holds the latest tenth of each user's ratings outside the test part


@dataclass(frozen=True, slots=True)
class Examples:
    """B training examples, one for each rating: the ids of their features, and their ratings.

    ids: feature -> [B] int64, one id per row.
    ragged: feature -> RaggedIds of B rows.
    rating: [B] float32.
    """

    ids: dict[str, Array]
    ragged: dict[str, RaggedIds]
    rating: Array

    def __len__(self) -> int:
        return len(self.rating)

    def select(self, rows: Array) -> Examples:
        """Returns the examples at positions `rows` ([n] int64), in this order, or where `rows` ([B] bool) is True."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Examples(
            ids={name: ids[index] for name, ids in self.ids.items()},
            ragged={name: select_rows(ids, index) for name, ids in self.ragged.items()},
            rating=self.rating[index],
        )


def build_examples(data: RatingData, spec: ModelSpec) -> Examples:
    """Returns one example per rating, in the order of RatingData, with the spec's vocabularies applied."""
    occupation = _vocabulary_ids(spec, "occupation")
    genre = _vocabulary_ids(spec, "genres")
    occupation_of_user = np.zeros(data.num_users + 1, np.int64)
    for user in data.users.values():
        occupation_of_user[user.user_id] = occupation.get(user.occupation, 0)
    no_genres: list[list[int]] = [[] for _ in range(data.num_films + 1)]
    for film in data.films.values():
        no_genres[film.film_id] = [genre.get(name, 0) for name in film.genres]
    genres_of_film = ragged(no_genres)
    return Examples(
        ids={
            "user_id": data.user_id,
            "film_id": data.film_id,
            "occupation": occupation_of_user[data.user_id],
        },
        ragged={
            "genres": select_rows(genres_of_film, data.film_id),
            "recent_films": recent_films(data, spec.feature("recent_films").max_ids_per_row),
        },
        rating=data.rating,
    )


def recent_films(data: RatingData, limit: int) -> RaggedIds:
    """Returns, per rating, the last films (at most `limit`, oldest first) that its user rated strictly earlier.

    Of ratings with the same timestamp none counts as earlier, because their order is unknown. So no example holds a
    film of the future.
    """
    rows = np.arange(len(data.user_id))
    is_new_user = np.r_[True, data.user_id[1:] != data.user_id[:-1]]
    is_new_time = is_new_user | np.r_[True, data.timestamp[1:] != data.timestamp[:-1]]
    first_of_user = np.maximum.accumulate(np.where(is_new_user, rows, 0))
    end = np.maximum.accumulate(np.where(is_new_time, rows, 0))
    start = np.maximum(first_of_user, end - limit)
    row_splits = np.r_[0, np.cumsum(end - start)]
    return RaggedIds(data.film_id[_ranges(start, end - start)], row_splits.astype(np.int64))


def held_out_rows(data: RatingData) -> Array:
    """Returns [n] bool: True for the last floor(n_u / 5) ratings of each user, who has n_u ratings."""
    return _last_share(data.user_id, _TEST_SHARE)


def split(examples: Examples, data: RatingData, held_out: HeldOut) -> tuple[Examples, Examples]:
    """Splits the examples of rated films; returns the training examples, then the held-out examples.

    "test" holds out each user's last 20%. "validation" drops these ratings and holds out the last 10% of the
    others, so that settings can be chosen without the test part.
    """
    is_test = held_out_rows(data)
    if held_out == "test":
        return examples.select(~is_test), examples.select(is_test)
    rest = np.flatnonzero(~is_test)
    is_validation = _last_share(data.user_id[rest], _VALIDATION_SHARE)
    return examples.select(rest[~is_validation]), examples.select(rest[is_validation])


def ragged(rows: list[list[int]]) -> RaggedIds:
    """Makes RaggedIds of a list of rows.

    >>> ragged([[3], [], [1, 2]]).row_splits.tolist()
    [0, 1, 1, 3]
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    values = np.array([value for row in rows for value in row], np.int64)
    return RaggedIds(values, np.r_[0, np.cumsum(lengths)].astype(np.int64))


def select_rows(ids: RaggedIds, index: Array) -> RaggedIds:
    start = ids.row_splits[index]
    lengths = ids.row_splits[index + 1] - start
    return RaggedIds(ids.values[_ranges(start, lengths)], np.r_[0, np.cumsum(lengths)].astype(np.int64))


def _ranges(start: Array, lengths: Array) -> Array:
    # The result is arange(start[i], start[i] + lengths[i]) for each i, concatenated.
    before = np.cumsum(lengths) - lengths
    return np.repeat(start - before, lengths) + np.arange(int(lengths.sum()))


def _last_share(user_id: Array, share: int) -> Array:
    _, first, count = np.unique(user_id, return_index=True, return_counts=True)
    position = np.arange(len(user_id)) - np.repeat(first, count)
    return position >= np.repeat(count - count // share, count)


def _vocabulary_ids(spec: ModelSpec, feature: str) -> dict[str, int]:
    vocabulary = spec.feature(feature).vocabulary
    assert vocabulary is not None
    return {str(word): row for row, word in enumerate(vocabulary.keys, start=vocabulary.first_id)}


_RIDGE = 5.0
_ROUNDS = 20


def rmse(prediction: Array, rating: Array) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(prediction, np.float64) - rating))))


def baseline_rmse(train: Examples, held_out: Examples) -> Mapping[str, float]:
    """Fits the baselines global_mean and user_film_bias to the training part; returns their RMSE on the held-out part.

    global_mean: the mean rating for every user and film. user_film_bias: mean + b_user + b_film, by alternating ridge
        means.

    Source: Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender Systems", Computer 42(8), 2009,
    eq. 3.
    """
    mean = float(train.rating.mean(dtype=np.float64))
    users, films = train.ids["user_id"], train.ids["film_id"]
    num_users = 1 + max(int(users.max()), int(held_out.ids["user_id"].max()))
    num_films = 1 + max(int(films.max()), int(held_out.ids["film_id"].max()))
    user_bias, film_bias = np.zeros(num_users), np.zeros(num_films)
    user_count, film_count = np.bincount(users, minlength=num_users), np.bincount(films, minlength=num_films)
    rest = train.rating.astype(np.float64) - mean
    for _ in range(_ROUNDS):
        film_bias = np.bincount(films, rest - user_bias[users], num_films) / (film_count + _RIDGE)
        user_bias = np.bincount(users, rest - film_bias[films], num_users) / (user_count + _RIDGE)
    biased = mean + user_bias[held_out.ids["user_id"]] + film_bias[held_out.ids["film_id"]]
    return {
        "global_mean": rmse(np.full(len(held_out), mean), held_out.rating),
        "user_film_bias": rmse(biased, held_out.rating),
    }
