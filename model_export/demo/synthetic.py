"""A tiny synthetic data set with known structure, the same on every machine: for tests and for a first try offline."""

from __future__ import annotations

import numpy as np

from model_export.demo.ratings import UNKNOWN_GENRE, Film, RatingData, User, rating_data

# The name of the data set.
SYNTHETIC = "synthetic"
# The words of MovieLens, so that requests that are written for it find the same rows here. Each has its film or user.
_GENRES = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_OCCUPATIONS = (
    *("administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive", "healthcare"),
    *("homemaker", "lawyer", "librarian", "marketing", "none", "other", "programmer", "retired", "salesman"),
    *("scientist", "student", "technician", "writer"),
)
_NUM_LATENT = 3


def synthetic_ratings(
    *, num_users: int = 60, num_films: int = 80, num_ratings: int = 2000, seed: int = 7
) -> RatingData:
    """Generates ratings from 1 to 5: the rounded sum of a user bias, a film bias, a low-rank term and a little noise.

    Genres and occupations have the names of MovieLens's; the films are called "Synthetic film 1" and so on, so that
    nobody takes them for MovieLens's. Every user rates num_ratings / num_users films; several ratings share a
    timestamp, as in MovieLens. One film has the genre "unknown".
    """
    rng = np.random.default_rng(seed)
    genres = [
        tuple(_GENRES[g] for g in sorted({f % len(_GENRES), *rng.choice(len(_GENRES), size=rng.integers(0, 3))}))
        for f in range(num_films)
    ]
    genres[-1] = (UNKNOWN_GENRE,)
    films = [Film(f + 1, f"Synthetic film {f + 1}", genres[f]) for f in range(num_films)]
    users = [
        User(u + 1, int(rng.integers(15, 70)), "FM"[rng.integers(2)], _OCCUPATIONS[u % len(_OCCUPATIONS)])
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
    return rating_data(SYNTHETIC, ratings, users, films)
