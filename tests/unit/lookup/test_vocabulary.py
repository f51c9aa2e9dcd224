"""Strings to rows, and vocabulary files that do not fit their manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import ArtifactError, IdOutOfRange
from service.core.manifest import Manifest, VocabularyEntry
from service.lookup.vocabulary import Vocabulary, open_vocabularies

TEXTS = [b"red", b"green", b"blue"]


def open_one(folder: Path, data: bytes, *, size: int = 3, first_id: int = 0, oov_id: int | None = None) -> Vocabulary:
    """Writes a vocabulary file and opens it."""
    (folder / "v.txt").write_bytes(data)
    entry = VocabularyEntry("v.txt", size, first_id, oov_id)
    return open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]


@pytest.mark.parametrize("data", [b"red\ngreen\nblue\n", b"red\ngreen\nblue", b"red\r\ngreen\r\nblue\r\n"])
def test_line_i_is_row_first_id_plus_i(tmp_path: Path, data: bytes) -> None:
    vocabulary = open_one(tmp_path, data, first_id=1)
    assert vocabulary.ids_of(np.array(TEXTS, object), "x").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "strings", [np.array([b"red", b"x"], object), np.array(["red", "x"]), np.array([b"red", b"x"])]
)
def test_a_stranger_gets_the_oov_row(tmp_path: Path, strings: np.ndarray) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n", first_id=1, oov_id=0)
    ids = vocabulary.ids_of(strings, "x")
    assert (ids.tolist(), ids.dtype) == ([1, 0], np.int64)


def test_a_stranger_without_an_oov_row_is_named_with_its_place(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n")
    with pytest.raises(
        IdOutOfRange, match="^input \"color\": 'r\ufffdd' at position 1 is not in its vocabulary of 3 str"
    ):
        vocabulary.ids_of(np.array([b"red", b"r\xffd"], object), "color")


def test_any_shape_keeps_its_shape(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, b"red\ngreen\nblue\n")
    assert vocabulary.ids_of(np.array([[b"red"], [b"blue"]], object), "x").tolist() == [[0], [2]]
    assert vocabulary.ids_of(np.empty(0, object), "x").tolist() == []


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    vocabulary = open_one(tmp_path, "a b\u2028c\n\nx\x0by\n".encode())
    assert vocabulary.ids_of(np.array(["a b\u2028c", "", "x\x0by"], object), "x").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"red\n", r"v\.txt has 1 lines, its manifest says 3"),
        (b"red\ngreen\nblue\n\n", r"v\.txt has 4 lines, its manifest says 3"),
        (b"red\ngreen\nred\n", r"v\.txt holds a string twice"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_one(tmp_path, data)


@pytest.mark.parametrize("name", ["missing.txt", "", "nul\0", "\ud800"])
def test_a_file_that_can_not_be_read_is_an_artifact_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="cannot read vocabulary"):
        open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": VocabularyEntry(name, 1)}))
