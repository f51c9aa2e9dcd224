"""Ratings have one canonical order and one checksum, and come back from disk complete."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from movielens.ratings import Film, RatingData, User, rating_data, read_ratings, write_ratings

USERS = [User(1, 20, "F", "writer"), User(2, 30, "M", "artist")]
FILMS = [Film(1, 'A "quoted", title', ("drama",)), Film(2, "Éxtasis", ("comedy", "drama")), Film(3, "No genre", ())]
ROWS = [(2, 1, 3.0, 50), (1, 2, 4.5, 20), (1, 1, 5.0, 20), (1, 3, 1.0, 10)]


def test_the_order_of_the_source_does_not_matter() -> None:
    shuffled = random.Random(3).sample(ROWS, len(ROWS))
    assert rating_data("x", shuffled, USERS, FILMS).ratings_csv() == rating_data("x", ROWS, USERS, FILMS).ratings_csv()


def test_rows_are_ordered_by_user_then_time_then_film() -> None:
    text = rating_data("x", ROWS, USERS, FILMS).ratings_csv().decode()
    assert text.splitlines() == ["user_id,film_id,rating,timestamp", "1,3,1,10", "1,1,5,20", "1,2,4.5,20", "2,1,3,50"]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = rating_data("x", ROWS, USERS, FILMS)
    write_ratings(data, tmp_path)
    _assert_same(read_ratings(tmp_path, "x"), data)


@pytest.mark.parametrize(
    "rows", [[], [(3, 1, 3.0, 50)], [(1, 4, 3.0, 50)]], ids=["no ratings", "unknown user", "unknown film"]
)
def test_ratings_of_strangers_are_refused(rows: list[tuple[int, int, float, int]]) -> None:
    with pytest.raises(ExportError):
        rating_data("x", rows, USERS, FILMS)


def test_id_0_is_kept_for_the_unknown() -> None:
    with pytest.raises(ExportError, match="below 1"):
        rating_data("x", ROWS, [*USERS, User(0, 1, "F", "writer")], FILMS)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_ratings(rating_data("x", ROWS, USERS, FILMS), tmp_path)
    (tmp_path / "users.csv").write_text("user_id,age,gender,occupation\n1,2\n")
    with pytest.raises(ExportError, match=tmp_path.name):
        read_ratings(tmp_path, "x")


def _assert_same(got: RatingData, wanted: RatingData) -> None:
    for field in dataclasses.fields(RatingData):
        a, b = getattr(got, field.name), getattr(wanted, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name
