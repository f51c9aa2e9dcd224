"""Film ratings: their canonical form in memory and as three CSV files, and a small generated data set.

Rows are ordered by (user, timestamp, film), whatever the source's order, so the same ratings give the same bytes and
the same checksum. Ids start at 1; 0 is left for "unknown".
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from service.types import Array

RATINGS_FILE = "ratings.csv"
USERS_FILE = "users.csv"
FILMS_FILE = "films.csv"
# MovieLens's genre for "no genre known". It is not in the vocabulary, so it maps to row 0.
UNKNOWN_GENRE = "unknown"


@dataclass(frozen=True, slots=True)
class User:
    """One user who rated films, with age, gender and occupation."""

    user_id: int
    age: int
    gender: str
    occupation: str


@dataclass(frozen=True, slots=True)
class Film:
    """One rated film, with its title and genres."""

    film_id: int
    title: str
    genres: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RatingData:
    """Film ratings, and the descriptions of their users and films.

    user_id, film_id, timestamp: [n] int64 (timestamp in seconds); rating: [n] float32; in canonical row order.
    users, films: by id.
    """

    name: str
    user_id: Array
    film_id: Array
    rating: Array
    timestamp: Array
    users: Mapping[int, User]
    films: Mapping[int, Film]

    @property
    def num_users(self) -> int:
        """The highest user id in the ratings data, from which the size of the user table follows."""
        return max(self.users)

    @property
    def num_films(self) -> int:
        """The highest film id in the ratings data, from which the size of the film table follows."""
        return max(self.films)

    @property
    def film_titles(self) -> tuple[str, ...]:
        """The title of each film of the ratings data, by its id; "" for a number that is no film's, such as 0."""
        return tuple(self.films[id_].title if id_ in self.films else "" for id_ in range(self.num_films + 1))

    @property
    def film_genres(self) -> Sequence[tuple[str, ...]]:
        return [film.genres for film in self.films.values()]

    @property
    def genre_vocabulary(self) -> tuple[str, ...]:
        return tuple(sorted({genre for genres in self.film_genres for genre in genres} - {UNKNOWN_GENRE}))

    @property
    def occupation_vocabulary(self) -> tuple[str, ...]:
        return tuple(sorted({user.occupation for user in self.users.values()}))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.ratings_csv()).hexdigest()

    def ratings_csv(self) -> bytes:
        """Returns the bytes of the canonical ratings file: a header, then lines of user, film, rating and timestamp. A
        rating that is a whole number has no decimals.
        """
        columns = (self.user_id.tolist(), self.film_id.tolist(), self.rating.tolist(), self.timestamp.tolist())
        rows = [f"{user},{film},{rating:g},{time}" for user, film, rating, time in zip(*columns, strict=True)]
        return ("\n".join(["user_id,film_id,rating,timestamp", *rows]) + "\n").encode()


def rating_data(
    name: str,
    ratings: Sequence[tuple[int, int, float, int]],
    users: Sequence[User],
    films: Sequence[Film],
) -> RatingData:
    """Sorts ratings (user, film, rating, timestamp) into canonical order and checks them.

    Raises:
      ExportError: there are no ratings, an id is below 1, or a rating's user or film is not described.
    """
    if not ratings:
        raise ExportError(f"{name}: there are no ratings")
    columns = np.array(ratings, np.float64)
    user_id, film_id, timestamp = (columns[:, c].astype(np.int64) for c in (0, 1, 3))
    order = np.lexsort((film_id, timestamp, user_id))
    data = RatingData(
        name=name,
        user_id=user_id[order],
        film_id=film_id[order],
        rating=columns[order, 2].astype(np.float32),
        timestamp=timestamp[order],
        users={user.user_id: user for user in users},
        films={film.film_id: film for film in films},
    )
    for what, ids, known in (("user", user_id, data.users), ("film", film_id, data.films)):
        strangers = sorted(set(np.unique(ids).tolist()) - set(known))
        if strangers or min(known) < 1:
            raise ExportError(f"{name}: {what} ids {strangers[:5]} are not described, or an id is below 1")
    return data


def write_ratings(data: RatingData, folder: Path) -> None:
    (folder / RATINGS_FILE).write_bytes(data.ratings_csv())
    users = [(u.user_id, u.age, u.gender, u.occupation) for _, u in sorted(data.users.items())]
    films = [(f.film_id, f.title, "|".join(f.genres)) for _, f in sorted(data.films.items())]
    _write_csv(folder / USERS_FILE, ("user_id", "age", "gender", "occupation"), users)
    _write_csv(folder / FILMS_FILE, ("film_id", "title", "genres"), films)


def read_ratings(folder: Path, name: str) -> RatingData:
    try:
        users = [User(int(u), int(age), gender, job) for u, age, gender, job in _read_csv(folder / USERS_FILE)]
        films = [Film(int(f), title, _genres(genres)) for f, title, genres in _read_csv(folder / FILMS_FILE)]
        ratings = [(int(u), int(f), float(r), int(t)) for u, f, r, t in _read_csv(folder / RATINGS_FILE)]
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read ratings from {folder}: {error}") from error
    return rating_data(name, ratings, users, films)


def _genres(joined: str) -> tuple[str, ...]:
    return tuple(genre for genre in joined.split("|") if genre)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def _read_csv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


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
