"""The demo's data: downloaded, or made up, and read as examples."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_export.errors import ExportError
from movielens import download
from movielens.download import Progress, Source
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
from movielens.ratings import UNKNOWN_GENRE, Film, RatingData, User, rating_data, synthetic_ratings
from tests.http_servers import http_server

OFFICIAL_RATINGS = "2\t1\t3\t880000002\n1\t2\t4\t880000001\n1\t1\t5\t880000001\n"
OFFICIAL_USERS = "1|24|M|technician|85711\n2|53|F|other|94043\n"
OFFICIAL_FILMS = (
    "1|Toy Story (1995)|01-Jan-1995||http://x/M?a|0|0|1|1\n"
    "2|A bar\x85 and\x1c an end (1996)|01-Jan-1996||http://x/M?b|0|1|0|0\n"
    "3|unknown||||1|0|0|0\n"
)
OFFICIAL_GENRES = "unknown|0\nDrama|1\nAnimation|2\nChildren's|3\n\n"
PACKAGE_RATINGS = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "1\t1\t5\t880000001\n1\t2\t4\t880000001\n2\t1\t3\t880000002\n"
)
PACKAGE_USERS = (
    "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\ttechnician\t85711\n2\t53\tF\tother\t94043\n"
)
PACKAGE_FILMS = (
    "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "1\tToy Story\t1995\tAnimation Children's\n2\tA bar\x85 and\x1c an end\t1996\tDrama\n3\tunkonwn\tunkonwn\tunknown\n"
)


def official() -> RatingData:
    return download.parse_official(OFFICIAL_RATINGS, OFFICIAL_USERS, OFFICIAL_FILMS, OFFICIAL_GENRES)


def package() -> RatingData:
    return download.parse_package(PACKAGE_RATINGS, PACKAGE_USERS, PACKAGE_FILMS)


def test_both_sources_give_the_same_ratings_users_and_genres() -> None:
    assert official().sha256 == package().sha256
    assert official().users == package().users
    assert official().film_genres == package().film_genres
    assert official().films[1] == package().films[1]


def test_the_official_format() -> None:
    data = official()
    assert data.films[1].title == "Toy Story (1995)"
    assert data.films[1].genres == ("Animation", "Children's")
    assert data.films[3].genres == ("unknown",)
    assert data.genre_vocabulary == ("Animation", "Children's", "Drama")
    assert data.occupation_vocabulary == ("other", "technician")
    assert data.film_id.tolist() == [1, 2, 1]


@pytest.fixture
def tiny_movielens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the three ratings above pass for the real ones."""
    for name, value in {"NUM_RATINGS": 3, "NUM_USERS": 2, "NUM_FILMS": 3, "RATINGS_SHA256": official().sha256}.items():
        monkeypatch.setattr(download, name, value)


def _works(progress: Progress) -> RatingData:
    progress(10, 10)
    return package()


def _fails(progress: Progress) -> RatingData:
    raise OSError("no route to host")


def _never(progress: Progress) -> RatingData:
    raise AssertionError("asked again")


@pytest.mark.usefixtures("tiny_movielens")
def test_the_second_source_is_asked_where_the_first_fails(tmp_path: Path) -> None:
    said: list[str] = []
    data = download.fetch(tmp_path / "ml", sources={"first": _fails, "second": _works}, say=said.append)
    assert len(data.rating) == 3
    assert sorted(path.name for path in (tmp_path / "ml").iterdir()) == [
        "NOTICE",
        "films.csv",
        "ratings.csv",
        "users.csv",
    ]
    assert "GroupLens" in (tmp_path / "ml" / "NOTICE").read_text()
    assert any("no route to host" in text for text in said)


@pytest.mark.usefixtures("tiny_movielens")
def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    first = download.fetch(tmp_path / "ml", sources={"one": _works})
    assert download.fetch(tmp_path / "ml", sources={"one": _never}).sha256 == first.sha256


@pytest.mark.usefixtures("tiny_movielens")
def test_without_any_source_the_message_names_all_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="(?s)first: no route.*second: no route.*synthetic"):
        download.fetch(tmp_path / "ml", sources={"first": _fails, "second": _fails})
    assert list(tmp_path.iterdir()) == []


def test_other_ratings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: dict[str, Source] = {"liar": _works}
    with pytest.raises(ExportError, match="expected"):
        download.fetch(tmp_path / "ml", sources=sources)
    for name, value in {"NUM_RATINGS": 3, "NUM_USERS": 2, "NUM_FILMS": 3}.items():
        monkeypatch.setattr(download, name, value)
    with pytest.raises(ExportError, match="sha256"):
        download.fetch(tmp_path / "ml", sources=sources)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tiny_movielens")
def test_changed_files_are_noticed(tmp_path: Path) -> None:
    download.fetch(tmp_path / "ml", sources={"one": _works})
    path = tmp_path / "ml" / "ratings.csv"
    path.write_text(path.read_text().replace("1,1,5", "1,1,4"))
    with pytest.raises(ExportError, match="sha256"):
        download.fetch(tmp_path / "ml", sources={"one": _never})


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match="other files"):
        download.fetch(tmp_path, sources={"one": _never})
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_an_environment_without_pip_uses_the_one_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert download._pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/local/bin/pip" if name == "pip" else None)
    assert download._pip() == ["/usr/local/bin/pip"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert download._pip() is None


@pytest.mark.usefixtures("tiny_movielens")
def test_without_pip_the_package_comes_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"inter": PACKAGE_RATINGS, "user": PACKAGE_USERS, "item": PACKAGE_FILMS}
    name = "recbole-1.2.1-py3-none-any.whl"
    (tmp_path / "recbole").mkdir()
    with zipfile.ZipFile(tmp_path / "recbole" / name, "w") as archive:
        for kind, text in parts.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{kind}", text)
    digest = hashlib.sha256((tmp_path / "recbole" / name).read_bytes()).hexdigest()
    listed = {"files": [{"filename": name, "url": f"{name}#sha256=x", "hashes": {"sha256": digest}}]}
    (tmp_path / "recbole" / "index.html").write_text(json.dumps(listed))
    monkeypatch.setattr(download, "_pip", lambda: None)
    with http_server(partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as port:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}")
        assert len(download.from_package(lambda done, total: None).rating) == 3
        (tmp_path / "recbole" / name).write_bytes(b"other")
        with pytest.raises(ExportError, match="another checksum"):
            download.from_package(lambda done, total: None)


def test_it_is_the_same_every_time() -> None:
    assert synthetic_ratings().ratings_csv() == synthetic_ratings().ratings_csv()
    assert synthetic_ratings().films == synthetic_ratings().films


def test_another_seed_gives_other_ratings() -> None:
    assert synthetic_ratings(seed=8).sha256 != synthetic_ratings().sha256


def test_it_holds_shared_timestamps_and_a_film_without_a_known_genre(ratings: RatingData) -> None:
    pairs = list(zip(ratings.user_id.tolist(), ratings.timestamp.tolist(), strict=True))
    assert len(set(pairs)) < len(pairs)
    assert (UNKNOWN_GENRE,) in ratings.film_genres
    assert UNKNOWN_GENRE not in ratings.genre_vocabulary


def test_no_user_rates_a_film_twice(ratings: RatingData) -> None:
    pairs = np.stack([ratings.user_id, ratings.film_id], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert set(ratings.rating.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}


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
