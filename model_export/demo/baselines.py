"""Baselines that a model has to beat: the global mean, and user and film biases; numpy only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from model_export.demo.examples import Examples
from service.types import Array

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
