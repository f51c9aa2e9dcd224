"""Reads both formats of MovieLens 100K, and fetches it from sources that work, fail or lie, without a network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from model_export.errors import ExportError
from movielens import download
from movielens.download import Progress, Source
from movielens.ratings import RatingData

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
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert len(download.from_package(lambda done, total: None).rating) == 3
        (tmp_path / "recbole" / name).write_bytes(b"other")
        with pytest.raises(ExportError, match="another checksum"):
            download.from_package(lambda done, total: None)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
