"""A tiny synthetic data set with known structure, the same on every machine: for tests and for a first try offline."""

from __future__ import annotations

import numpy as np

from model_export.demo.ratings import UNKNOWN_GENRE, Film, RatingData, User, rating_data

_GENRES = ("action", "comedy", "drama", "horror", "science fiction", "western")
_OCCUPATIONS = ("artist", "doctor", "engineer", "student", "writer")
_NUM_LATENT = 3


def synthetic_ratings(
    *, num_users: int = 60, num_films: int = 80, num_ratings: int = 2000, seed: int = 7
) -> RatingData:
    """Generates ratings from 1 to 5: the rounded sum of a user bias, a film bias, a low-rank term and a little noise.

    Every user rates num_ratings / num_users films; several ratings share a timestamp, as in MovieLens. One film has the
    genre "unknown".
    """
    rng = np.random.default_rng(seed)
    genres = [
        tuple(_GENRES[g] for g in sorted(rng.choice(len(_GENRES), size=rng.integers(1, 4), replace=False)))
        for _ in range(num_films)
    ]
    genres[-1] = (UNKNOWN_GENRE,)
    films = [Film(f + 1, f"Film {f + 1}", genres[f]) for f in range(num_films)]
    users = [
        User(u + 1, int(rng.integers(15, 70)), "FM"[rng.integers(2)], _OCCUPATIONS[rng.integers(len(_OCCUPATIONS))])
        for u in range(num_users)
    ]
    user_bias, film_bias = rng.normal(0, 0.4, num_users), rng.normal(0, 0.5, num_films)
    user_taste, film_taste = rng.normal(0, 0.6, (num_users, _NUM_LATENT)), rng.normal(0, 0.6, (num_films, _NUM_LATENT))
    per_user = min(num_films, num_ratings // num_users)
    ratings = []
    for user in range(num_users):
        seen = rng.choice(num_films, size=per_user, replace=False)
        times = 1_000_000 + np.sort(rng.integers(0, 2 * per_user, per_user)) * 60
        taste = user_bias[user] + film_bias[seen] + film_taste[seen] @ user_taste[user]
        stars = np.clip(np.rint(3.5 + taste + rng.normal(0, 0.3, per_user)), 1, 5)
        ratings += [
            (user + 1, int(film) + 1, float(star), int(time))
            for film, star, time in zip(seen, stars, times, strict=True)
        ]
    return rating_data("synthetic", ratings, users, films)
