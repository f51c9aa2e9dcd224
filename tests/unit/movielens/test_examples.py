"""Examples do not look into the future, are split by time, and have their vocabularies applied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from movielens.examples import (
    Examples,
    build_examples,
    held_out_rows,
    ragged,
    recent_films,
    select_rows,
    split,
)
from movielens.rating_model import rating_model_spec
from movielens.ratings import Film, RatingData, User, rating_data

# Few users, films and times, so that most drawn lists have ratings at the same time.
RATINGS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.sampled_from([1.0, 4.0]), st.integers(0, 6)),
    min_size=1,
    max_size=40,
)


def _data(rows: list[tuple[int, int, float, int]]) -> RatingData:
    users = [User(u, 30, "F", "artist") for u in range(1, 4)]
    return rating_data("drawn", rows, users, [Film(f, f"film {f}", ("drama",)) for f in range(1, 7)])


@given(rows=RATINGS, limit=st.integers(1, 4))
@settings(deadline=None)
def test_recent_films_are_the_last_ones_rated_strictly_earlier(
    rows: list[tuple[int, int, float, int]], limit: int
) -> None:
    data = _data(rows)
    recent = recent_films(data, limit)
    assert len(recent.row_splits) == len(rows) + 1
    for row in range(len(rows)):
        got = recent.values[recent.row_splits[row] : recent.row_splits[row + 1]].tolist()
        is_earlier = (data.user_id == data.user_id[row]) & (data.timestamp < data.timestamp[row])
        assert got == data.film_id[is_earlier][-limit:].tolist()


@given(rows=RATINGS, changed=st.integers(0, 39))
@settings(deadline=None)
def test_an_example_does_not_depend_on_ratings_of_its_time_or_later(
    rows: list[tuple[int, int, float, int]], changed: int
) -> None:
    # If all ratings of the user at this time or later are replaced, the rating's history stays the same.
    data = _data(rows)
    row = changed % len(rows)
    user, time = int(data.user_id[row]), int(data.timestamp[row])
    kept = [r for r in rows if r[0] != user or r[3] < time]
    future = _data([*kept, (user, 1, 1.0, time)])
    mine = int(np.flatnonzero((future.user_id == user) & (future.timestamp == time))[0])
    before, after = recent_films(data, 3), recent_films(future, 3)
    assert (
        before.values[before.row_splits[row] : before.row_splits[row + 1]].tolist()
        == after.values[after.row_splits[mine] : after.row_splits[mine + 1]].tolist()
    )


@given(rows=RATINGS)
@settings(deadline=None)
def test_each_users_last_fifth_is_held_out(rows: list[tuple[int, int, float, int]]) -> None:
    data = _data(rows)
    is_held_out = held_out_rows(data)
    for user in np.unique(data.user_id):
        mine = is_held_out[data.user_id == user]
        assert mine.sum() == len(mine) // 5
        assert sorted(mine.tolist()) == mine.tolist()  # the last ones


def test_validation_never_touches_the_test_part(ratings: RatingData) -> None:
    examples = build_examples(ratings, rating_model_spec(ratings))
    train, test = split(examples, ratings, "test")
    fit, validation = split(examples, ratings, "validation")
    assert len(train) + len(test) == len(examples)
    assert len(fit) + len(validation) == len(train)
    merged = sorted(_pairs(fit) + _pairs(validation))
    assert merged == sorted(_pairs(train))


def test_vocabularies_are_applied_and_the_unknown_genre_is_row_0(ratings: RatingData) -> None:
    spec = rating_model_spec(ratings)
    examples = build_examples(ratings, spec)
    genres = examples.ragged["genres"]
    words = ("", *spec.feature("genres").vocabulary.keys)
    jobs = ("", *spec.feature("occupation").vocabulary.keys)
    for row in range(len(examples)):
        film = ratings.films[int(ratings.film_id[row])]
        ids = genres.values[genres.row_splits[row] : genres.row_splits[row + 1]]
        assert [words[i] or "unknown" for i in ids] == list(film.genres)
        assert jobs[examples.ids["occupation"][row]] == ratings.users[int(ratings.user_id[row])].occupation
    assert (genres.values == 0).any()


def test_rows_are_taken_in_the_order_asked_for() -> None:
    ids = select_rows(ragged([[1, 2], [], [3]]), np.array([2, 0, 1, 0]))
    assert ids.values.tolist() == [3, 1, 2, 1, 2]
    assert ids.row_splits.tolist() == [0, 1, 3, 3, 5]


@pytest.mark.parametrize("index", [[], [1]])
def test_taking_nothing_gives_nothing(index: list[int]) -> None:
    ids = select_rows(ragged([[1, 2], []]), np.array(index, np.int64))
    assert ids.values.tolist() == []
    assert ids.row_splits.tolist() == [0] * (len(index) + 1)


def _pairs(examples: Examples) -> list[tuple[int, int]]:
    return list(zip(examples.ids["user_id"].tolist(), examples.ids["film_id"].tolist(), strict=True))
