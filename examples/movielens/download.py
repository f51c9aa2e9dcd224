"""Fetches MovieLens 100K from its publisher, or from a package that carries it; this project does not redistribute it.

Both sources are converted to the canonical form of ratings.py and must have the same checksum.

Source: F. Maxwell Harper, Joseph A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from model_export.environment import package_index
from model_export.errors import ExportError
from movielens.ratings import (
    RATINGS_FILE,
    UNKNOWN_GENRE,
    Film,
    RatingData,
    User,
    rating_data,
    read_ratings,
    write_ratings,
)

NAME = "movielens-100k"
OFFICIAL_URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
PACKAGE = "recbole==1.2.1"
RATINGS_SHA256 = "510273042ece82439e4d951067bb97ef2a9462abff3199a813962f9265faba56"
NUM_RATINGS, NUM_USERS, NUM_FILMS = 100_000, 943, 1_682
NOTICE = """\
MovieLens 100K, (c) GroupLens Research, University of Minnesota. https://grouplens.org/datasets/movielens/100k/

Its terms of use, in short: no redistribution without separate permission; no commercial or revenue-bearing use without
permission; no statement that the University of Minnesota endorses you; acknowledge the data set in publications:

F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. ACM Transactions on
Interactive Intelligent Systems (TiiS) 5, 4, Article 19. https://doi.org/10.1145/2827872

The CSV files in this folder were derived from it on this machine. Do not commit or publish them.
"""

# A callback for the download's progress: its arguments are the bytes downloaded and the size in bytes, or None.
Progress = Callable[[int, int | None], None]
Source = Callable[[Progress], RatingData]

_CONNECT_TIMEOUT_S = 5
_MAX_ARCHIVE_BYTES = 64 * 1024 * 1024
_OFFICIAL_FOLDER = "ml-100k/"
_PACKAGE_FOLDER = "recbole/dataset_example/ml-100k/"


def fetch(
    folder: Path,
    *,
    sources: Mapping[str, Source] | None = None,
    progress: Progress = lambda done, total: None,
    say: Callable[[str], None] = lambda text: None,
) -> RatingData:
    """Returns the MovieLens ratings in a folder; downloads them first if the folder does not hold them yet.

    Args:
      sources: name for messages -> function that fetches, tried in order; None: the publisher, then the package.

    Raises:
      ExportError: no source gave MovieLens 100K. The folder is unchanged then.
    """
    if (folder / RATINGS_FILE).exists():
        return checked(read_ratings(folder, NAME))
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(f"{folder} holds other files and no {RATINGS_FILE}; choose another folder")
    faults = []
    for name, source in (sources or {OFFICIAL_URL: from_official, f"the package {PACKAGE}": from_package}).items():
        say(f"fetching MovieLens 100K from {name}")
        try:
            data = checked(source(progress))
        except (ExportError, OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
            faults.append(f"{name}: {error}")
            say(f"  not there: {error}")
            continue
        _write(data, folder)
        return data
    raise ExportError(
        "MovieLens 100K could not be fetched:\n  "
        + "\n  ".join(faults)
        + "\nWith a network or a package mirror, try again; without, use the synthetic data set (--dataset synthetic)."
    )


def checked(data: RatingData) -> RatingData:
    counts = (len(data.rating), len(data.users), len(data.films))
    if counts != (NUM_RATINGS, NUM_USERS, NUM_FILMS):
        raise ExportError(f"{counts} ratings, users and films, expected {(NUM_RATINGS, NUM_USERS, NUM_FILMS)}")
    if data.sha256 != RATINGS_SHA256:
        raise ExportError(f"the ratings have sha256 {data.sha256}, expected {RATINGS_SHA256}")
    return data


def from_official(progress: Progress) -> RatingData:
    with zipfile.ZipFile(_download(OFFICIAL_URL, progress)) as archive:
        return parse_official(
            _member(archive, _OFFICIAL_FOLDER + "u.data", "utf-8"),
            _member(archive, _OFFICIAL_FOLDER + "u.user", "utf-8"),
            _member(archive, _OFFICIAL_FOLDER + "u.item", "latin-1"),
            _member(archive, _OFFICIAL_FOLDER + "u.genre", "utf-8"),
        )


def from_package(progress: Progress) -> RatingData:
    """Downloads the package that carries the data, without installing it or its dependencies: with pip, which knows the
    user's mirrors, or from the index that PIP_INDEX_URL names where no pip is installed, as in the image.
    """
    pip = _pip()
    if pip is None and not package_index():
        raise ExportError("pip is not installed here, and PIP_INDEX_URL names no package index")
    if pip is None:
        return _of_wheel(_from_index(package_index(), progress))
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "download", "--no-deps", "--no-binary=:none:", PACKAGE, "-d", folder]
        quick = ["--retries", "1", "--timeout", "10", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        result = subprocess.run([*command, *quick], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if result.returncode or not wheels:
            lines = [line for line in result.stderr.splitlines() if line.strip()]
            raise ExportError(f"pip could not download it ({lines[-1].strip() if lines else 'no message'})")
        content = io.BytesIO(wheels[0].read_bytes())
    progress(content.getbuffer().nbytes, content.getbuffer().nbytes)
    return _of_wheel(content)


def parse_official(ratings: str, users: str, films: str, genres: str) -> RatingData:
    """Parses u.data (fields divided by tabs), u.user and u.item (by bars) and u.genre (name|column).

    A film's line ends with one 0 or 1 per genre, in the order of u.genre.
    """
    names = [line.split("|")[0] for line in _lines(genres)]
    parsed_films = []
    for line in _lines(films):
        fields = line.split("|")
        flags = fields[-len(names) :]
        film_genres = [name for name, flag in zip(names, flags, strict=True) if flag == "1"]
        parsed_films.append(Film(int(fields[0]), fields[1], tuple(sorted(film_genres))))
    return rating_data(
        NAME,
        [_rating(line.split("\t")) for line in _lines(ratings)],
        [_user(line.split("|")) for line in _lines(users)],
        parsed_films,
    )


def parse_package(ratings: str, users: str, films: str) -> RatingData:
    """Parses MovieLens .inter, .user and .item texts: a header line, then tabs divide fields, and blanks genres."""
    parsed_films = []
    for line in _lines(films)[1:]:
        film_id, title, year, genres = line.split("\t")
        # The MovieLens package writes "unkonwn" as the year of a film whose year is unknown.
        title = title if year == "unkonwn" else f"{title} ({year})"
        parsed_films.append(Film(int(film_id), title, tuple(sorted(genres.split() or [UNKNOWN_GENRE]))))
    return rating_data(
        NAME,
        [_rating(line.split("\t")) for line in _lines(ratings)[1:]],
        [_user(line.split("\t")) for line in _lines(users)[1:]],
        parsed_films,
    )


def _pip() -> list[str] | None:
    # If this environment lacks pip, use any pip on PATH: each can download a pure-Python wheel.
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    return None if found is None else [found]


def _from_index(index: str, progress: Progress) -> io.BytesIO:
    name, _, version = PACKAGE.partition("==")
    page = json.load(_download(f"{index.rstrip('/')}/{name}/", accept="application/vnd.pypi.simple.v1+json"))
    wheels = [file for file in page["files"] if file["filename"].startswith(f"{name}-{version}-py3-")]
    if not wheels:
        raise ExportError(f"the package index has no wheel of {PACKAGE}")
    content = _download(urllib.parse.urljoin(f"{index.rstrip('/')}/{name}/", wheels[0]["url"]), progress)
    if hashlib.sha256(content.getbuffer()).hexdigest() != wheels[0]["hashes"].get("sha256"):
        raise ExportError(f"the wheel of {PACKAGE} has another checksum than the package index says")
    return content


def _of_wheel(wheel: io.BytesIO) -> RatingData:
    with zipfile.ZipFile(wheel) as archive:
        names = (f"{_PACKAGE_FOLDER}ml-100k.{kind}" for kind in ("inter", "user", "item"))
        return parse_package(*(_member(archive, name, "utf-8") for name in names))


def _download(url: str, progress: Progress = lambda done, total: None, accept: str = "*/*") -> io.BytesIO:
    request = urllib.request.Request(url, headers={"User-Agent": "model-export", "Accept": accept})
    content = io.BytesIO()
    with urllib.request.urlopen(request, timeout=_CONNECT_TIMEOUT_S) as response:
        total = int(response.headers.get("Content-Length", 0)) or None
        while chunk := response.read(1 << 16):
            content.write(chunk)
            progress(content.tell(), total)
            if content.tell() > _MAX_ARCHIVE_BYTES:
                raise ExportError("the download is far larger than MovieLens 100K")
    content.seek(0)
    return content


def _rating(fields: list[str]) -> tuple[int, int, float, int]:
    user, film, rating, time = fields
    return int(user), int(film), float(rating), int(time)


def _user(fields: list[str]) -> User:
    user_id, age, gender, occupation, _ = fields
    return User(int(user_id), int(age), gender, occupation)


def _lines(text: str) -> list[str]:
    # splitlines() is not used, because it would also split at characters other than line ends, which titles may hold.
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def _member(archive: zipfile.ZipFile, name: str, encoding: str) -> str:
    if archive.getinfo(name).file_size > _MAX_ARCHIVE_BYTES:
        raise ExportError(f"{name} is far larger than in MovieLens 100K")
    return archive.read(name).decode(encoding)


def _write(data: RatingData, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        write_ratings(data, temporary)
        (temporary / "NOTICE").write_text(NOTICE, encoding="utf-8")
        temporary.chmod(0o755)
        # Path.replace() renames the folder: it replaces an empty folder, and fails if the target holds files.
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
